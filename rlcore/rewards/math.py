"""Mathematical answers, compared by math-verify; integer answers by the number that the response states last.

Has no time limit of its own: sympy can compute for ever, and the router kills the process then.
"""

from __future__ import annotations

import logging
import re
from decimal import Decimal

import sympy
from math_verify import parse, verify

from rlcore.rewards.interface import Score

# math-verify warns once that its own (signal-based) time limits are off; ours are on.
logging.getLogger("math_verify").setLevel(logging.ERROR)

INTEGER = re.compile(r"[-+]?\d+")
# A minus is a sign only where it does not subtract: "-3" and "= -3", but not "5-3".
NUMBER = re.compile(r"(?:(?<![\w)])[-−])?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?")
BOXED = re.compile(r"\\boxed\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}")


def grade(response_text: str, ground_truth: str) -> Score:
    """Reward 1 if the response's answer equals the ground truth, else 0.

    An integer ground truth wants the number itself: the content of the last `\\boxed{}`, or without a
    box the last number of the text. An expression that would only evaluate to it (the question
    repeated) is no answer. Any other ground truth is compared with what math-verify extracts.

    Components: `correct`, and `answered`, which is 1 if an answer was found.

    Raises:
        ValueError: the ground truth is not a mathematical expression.
    """
    if INTEGER.fullmatch(ground_truth.strip()):
        answer = _stated_number(response_text)
        correct = answer is not None and answer == Decimal(ground_truth)
        return _score(correct, answered=answer is not None)
    gold = _parse(rf"\boxed{{{ground_truth}}}")
    if not any(isinstance(value, sympy.Basic | sympy.MatrixBase) for value in gold):
        raise ValueError(
            f"ground truth {ground_truth[:80]!r} is not a mathematical expression; write LaTeX or a number"
        )
    answers = _parse(response_text)
    return _score(verify(gold, answers, timeout_seconds=None, raise_on_error=True), answered=bool(answers))


def _stated_number(text: str) -> Decimal | None:
    boxes = BOXED.findall(text)
    if not boxes:
        numbers = NUMBER.findall(text)
        return Decimal(numbers[-1].replace(",", "").replace("−", "-")) if numbers else None
    for value in _parse(rf"\boxed{{{boxes[-1]}}}"):
        stated = value.rhs if isinstance(value, sympy.Equality) else value
        if isinstance(stated, sympy.Number):
            return Decimal(int(stated)) if stated.is_Integer else Decimal(float(stated))
    return None


def _parse(text: str) -> list[sympy.Basic | sympy.MatrixBase | str]:
    parsed: list[sympy.Basic | sympy.MatrixBase | str] = parse(text, parsing_timeout=None, raise_on_error=True)
    return parsed


def _score(correct: bool, *, answered: bool) -> Score:
    return Score(float(correct), {"correct": float(correct), "answered": float(answered)})
