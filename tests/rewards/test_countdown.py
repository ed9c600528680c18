"""An expression of the given numbers, and nothing that would have to be executed."""

from __future__ import annotations

import json
import operator
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rlcore.rewards.countdown import grade

TRUTH = json.dumps({"numbers": [3, 5, 4], "target": 32})


@pytest.mark.parametrize(
    "answer",
    ["(3 + 5) * 4", "4*(5+3)", "(3+5)×4", " ( 3 + 5 ) * 4 = 32 ", "-(-(3+5)*4)", "(3 − -5) * 4"],
)
def test_a_right_expression_is_rewarded(answer: str) -> None:
    score = grade(f"Let me see: 3 * 5 is 15. <answer>{answer}</answer>", TRUTH)
    assert score.reward == 1.0
    assert score.components == {"correct": 1.0, "answered": 1.0, "numbers": 1.0}


@pytest.mark.parametrize(
    ("response", "answered", "numbers"),
    [
        ("(3 + 5) * 4", 0.0, 0.0),
        ("<answer></answer>", 0.0, 0.0),
        ("<answer>32</answer>", 1.0, 0.0),
        ("<answer>3 + 5 + 4</answer>", 1.0, 1.0),
        ("<answer>(3 + 5) * 4 = 33</answer>", 0.0, 0.0),
        ("<answer>(3 + 5) * 4 + 0</answer>", 1.0, 0.0),
        ("<answer>8 * 4</answer>", 1.0, 0.0),
        ("<answer>3 / (5 - 5) * 4</answer>", 1.0, 0.0),
        ("<answer>(3 + 5) * 4</answer> or rather <answer>3</answer>", 1.0, 0.0),
        ("<answer>(3 + 5) * 4; 32</answer>", 0.0, 0.0),
    ],
)
def test_anything_else_is_not(response: str, answered: float, numbers: float) -> None:
    score = grade(response, TRUTH)
    assert score.components == {"correct": 0.0, "answered": answered, "numbers": numbers}
    assert score.reward == 0.0


@pytest.mark.parametrize(
    "answer",
    [
        "__import__('os').system('true')",
        "3 ** 5 ** 4 ** 99",
        "(lambda: 32)()",
        "[32][0]",
        "True + 31",
        "32.0",
        "0x20",
        "(" * 300 + "3" + ")" * 300,
        "+".join(["3"] * 500),
        "-" * 150 + "3",
        "3 << 4",
        "１２+20",
        "f'{3}'",
        "3 if 5 else 4",
        "a := 3",
        "\0",
    ],
)
def test_no_answer_is_executed_or_takes_long(answer: str) -> None:
    assert grade(f"<answer>{answer}</answer>", TRUTH).reward == 0.0


def test_a_division_by_zero_makes_nothing() -> None:
    truth = json.dumps({"numbers": [3, 5, 5], "target": 3})
    assert grade("<answer>3 / (5 - 5)</answer>", truth).components == {"correct": 0.0, "answered": 1.0, "numbers": 1.0}


def test_fractions_on_the_way_are_exact() -> None:
    truth = json.dumps({"numbers": [8, 3, 8, 3], "target": 24})
    assert grade("<answer>8 / (3 - 8 / 3)</answer>", truth).reward == 1.0


def test_numbers_may_be_left_where_the_option_says_so() -> None:
    truth = json.dumps({"numbers": [3, 5, 4, 99], "target": 32})
    assert grade("<answer>(3 + 5) * 4</answer>", truth).reward == 0.0
    assert grade("<answer>(3 + 5) * 4</answer>", truth, all_numbers=False).reward == 1.0
    assert grade("<answer>(3 + 5) * 4 + 99 - 99</answer>", truth, all_numbers=False).reward == 0.0


@given(st.recursive(st.integers(1, 99), lambda tree: st.tuples(tree, st.sampled_from("+-*/"), tree), max_leaves=6))
def test_every_expression_makes_its_value_and_no_other(tree: object) -> None:
    text, value, numbers = written(tree)
    if value is None or value.denominator != 1:
        return
    target = int(value)
    assert grade(f"<answer>{text}</answer>", json.dumps({"numbers": numbers, "target": target})).reward == 1.0
    assert grade(f"<answer>{text}</answer>", json.dumps({"numbers": numbers, "target": target + 1})).reward == 0.0


def written(tree: object) -> tuple[str, Fraction | None, list[int]]:
    if isinstance(tree, int):
        return str(tree), Fraction(tree), [tree]
    assert isinstance(tree, tuple)
    (left, x, some), (right, y, more) = written(tree[0]), written(tree[2])
    operations = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
    fails = x is None or y is None or (tree[1] == "/" and y == 0)
    return f"({left} {tree[1]} {right})", None if fails else operations[tree[1]](x, y), some + more


@pytest.mark.parametrize("truth", ["32", "{}", '{"numbers": [], "target": 1}', '{"numbers": [1.5], "target": 1}'])
def test_a_ground_truth_of_another_form_is_an_error(truth: str) -> None:
    with pytest.raises(ValidationError):
        grade("<answer>1</answer>", truth)
