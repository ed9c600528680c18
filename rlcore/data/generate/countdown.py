"""Countdown with three or four small numbers."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from fractions import Fraction

from rlcore.data.generate.split import Row, Split

OPERATIONS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
LARGEST = 100
ROWS = {3: (160, 40), 4: (160, 40)}
"""By how many numbers, the rows to train on and those held out."""


def countdown(rng: random.Random) -> Split:
    """Each has a solution. No two have the same numbers."""
    split, seen = Split([], []), set[tuple[int, ...]]()
    for count, (train, held_out) in ROWS.items():
        rows: list[Row] = []
        while len(rows) < train + held_out:
            numbers = tuple(sorted(rng.randint(1, 20) for _ in range(count)))
            targets = sorted(
                {int(value) for value in reachable(numbers) if value.denominator == 1 and 0 < value <= LARGEST}
            )
            if targets and numbers not in seen:
                seen.add(numbers)
                rows.append(row(rng.sample(numbers, count), rng.choice(targets)))
        split.train.extend(rows[:train])
        split.held_out.extend(rows[train:])
    return split


def row(numbers: list[int], target: int) -> Row:
    return {
        "domain": "countdown",
        "tag": f"numbers_{len(numbers)}",
        "prompt": f"Use each of the numbers {', '.join(map(str, numbers))} once, with + - * / and parentheses, to make "
        f"{target}. Write the expression in <answer></answer>, for example <answer>(1 + 2) * 3</answer>.",
        "ground_truth": {"numbers": numbers, "target": target},
    }


def reachable(numbers: tuple[int, ...]) -> set[Fraction]:
    """All values of expressions that use each number once."""
    values: set[Fraction] = set()
    combine([Fraction(number) for number in numbers], values)
    return values


def combine(left: list[Fraction], values: set[Fraction]) -> None:
    if len(left) == 1:
        values.add(left[0])
    for i, one in enumerate(left):
        for j, other in enumerate(left):
            if i != j:
                rest = [value for number, value in enumerate(left) if number not in (i, j)]
                for sign, operation in OPERATIONS.items():
                    if sign != "/" or other:
                        combine([*rest, operation(one, other)], values)
