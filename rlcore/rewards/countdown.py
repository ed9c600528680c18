"""Countdown: an expression of given numbers that makes a target.

Prompt: the numbers and the target, and that the expression is wanted in `<answer>…</answer>`, such as
`<answer>(3 + 5) * 4</answer>` (the format of TinyZero and of arXiv 2510.13554's task).
"""

from __future__ import annotations

import ast
import operator
import re
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from rlcore.rewards.interface import Score

LONGEST = 200
"""Characters of an expression. With no power among the operators this bounds its value, and how deep it is."""
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
SPELLINGS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"})
OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class Puzzle(BaseModel):
    """The ground truth."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    numbers: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]
    target: int


def grade(response_text: str, ground_truth: str, *, all_numbers: bool = True) -> Score:
    """Reward 1 if the expression in the last `<answer>…</answer>` makes the target, else 0.

    The expression has the four operations, parentheses and the puzzle's numbers, each as often as the puzzle has it.
    It may end with `= TARGET`. It is never executed: its syntax tree is evaluated in fractions.

    Args:
        ground_truth: JSON `{"numbers": [3, 5, 4], "target": 32}`.
        all_numbers: every number must be used; else some may be left.

    Components: `correct`; `answered`, 1 if there is an expression of numbers and operations; `numbers`, 1 if it uses
    those that it may.

    Raises:
        ValidationError: the ground truth is no such JSON.
    """
    puzzle = Puzzle.model_validate_json(ground_truth)
    answers = ANSWER.findall(response_text)
    tree = _parsed(answers[-1], puzzle.target) if answers else None
    if tree is None:
        return _score(correct=False, answered=False, numbers=False)
    used, there = Counter(_numbers(tree)), Counter(puzzle.numbers)
    numbers = used == there if all_numbers else used <= there
    return _score(correct=numbers and _value(tree) == puzzle.target, answered=True, numbers=numbers)


def _score(*, correct: bool, answered: bool, numbers: bool) -> Score:
    components = {"correct": float(correct), "answered": float(answered), "numbers": float(numbers)}
    return Score(components["correct"], components)


def _parsed(text: str, target: int) -> ast.expr | None:
    """The syntax tree, if there is nothing in it but numbers and the four operations."""
    text = text.strip().translate(SPELLINGS)
    left, equals, right = text.partition("=")
    if equals and right.strip() != str(target):
        return None
    if len(left) > LONGEST or not left.isascii():
        return None
    try:
        tree = ast.parse(left.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return tree if _is_allowed(tree) else None


def _is_allowed(tree: ast.expr) -> bool:
    match tree:
        case ast.Constant(value=int() as value):
            return not isinstance(value, bool)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            return _is_allowed(operand)
        case ast.BinOp(left=left, op=op, right=right):
            return type(op) in OPERATORS and _is_allowed(left) and _is_allowed(right)
    return False


def _numbers(tree: ast.expr) -> list[int]:
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, int)]


def _value(tree: ast.expr) -> Fraction | None:
    """None where it divides by zero."""
    match tree:
        case ast.Constant(value=int() as value):
            return Fraction(value)
        case ast.UnaryOp(op=op, operand=operand):
            inner = _value(operand)
            return None if inner is None else -inner if isinstance(op, ast.USub) else inner
        case ast.BinOp(left=left, op=op, right=right):
            one, other = _value(left), _value(right)
            if one is None or other is None or (isinstance(op, ast.Div) and other == 0):
                return None
            return OPERATORS[type(op)](one, other)
    raise AssertionError(f"{ast.dump(tree)} is not allowed")
