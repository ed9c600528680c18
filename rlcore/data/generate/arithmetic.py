"""Sums, products and one-sentence word problems of small numbers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations_with_replacement

from rlcore.data.generate.split import Row, Split

Pair = tuple[int, int]
BRIEFLY = "Reply in one short sentence."
SUM = "What is {a} + {b}?"
PRODUCTS = ("What is {a} x {b}?", "What does {a} x {b} equal?", "What is {a} times {b}?")
NAMES = ("Sam", "Mia", "Tom", "Anna", "Ben", "Lily", "Leo", "Sara")
THINGS = ("books", "coins", "apples", "cards", "pens", "stickers", "marbles", "shells")
GAINS = (
    "{name} has {a} {things} and gets {b} more {things}, so how many {things} does {name} have?",
    "{name} has {a} {things} and buys {b} more {things}, so how many {things} does {name} have?",
)
LOSS = "{name} had {a} {things} and lost {b} {things}, so how many {things} does {name} have?"
TRAIN_ROWS = 200
"""Most training rows of a tag."""


def arithmetic(rng: random.Random) -> Split:
    """Sums of 0–20, products of 2–9, and one-sentence word problems with 2–20; the ground truth is the integer."""

    def row(tag: str, prompt: str, result: int) -> Row:
        return {"domain": "arithmetic", "tag": tag, "prompt": f"{prompt} {BRIEFLY}", "ground_truth": str(result)}

    def sums(pairs: list[Pair]) -> Iterator[Row]:
        for a, b in both_orders(pairs):
            yield row("sum", SUM.format(a=a, b=b), a + b)

    def products(pairs: list[Pair]) -> Iterator[Row]:
        for wording in PRODUCTS:
            for a, b in both_orders(pairs):
                yield row("product", wording.format(a=a, b=b), a * b)

    def word_problems(pairs: list[Pair]) -> Iterator[Row]:
        for low, high in pairs:
            name, things = rng.choice(NAMES), rng.choice(THINGS)
            for wording in GAINS:
                a, b = rng.sample((low, high), 2)
                yield row("word", wording.format(name=name, things=things, a=a, b=b), a + b)
            # What is lost is less than what was there.
            a, b = low + high, low
            yield row("word", LOSS.format(name=name, things=things, a=a, b=b), a - b)

    split = Split([], [])
    for rows, numbers, held_out in (
        (sums, range(21), 32),
        (products, range(2, 10), 10),
        (word_problems, range(2, 21), 20),
    ):
        pairs = list(combinations_with_replacement(numbers, 2))
        rng.shuffle(pairs)
        split.held_out.extend(rows(pairs[:held_out]))
        train = list(rows(pairs[held_out:]))
        split.train.extend(rng.sample(train, min(len(train), TRAIN_ROWS)))
    return split


def both_orders(pairs: list[Pair]) -> list[Pair]:
    return [order for a, b in pairs for order in dict.fromkeys([(a, b), (b, a)])]
