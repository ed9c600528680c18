"""The letter of a choice, and ROLL's table of rewards for it."""

from __future__ import annotations

import pytest

from rlcore.rewards.multiple_choice import RewardType, grade


@pytest.mark.parametrize(
    "response",
    [
        r"\boxed{B}",
        r"So it is \boxed{B. Paris}.",
        r"\boxed{\text{B}}",
        r"\boxed{A} no, \boxed{(B)}",
        r"The answer is A, or rather \boxed{B}",
    ],
)
def test_a_boxed_letter_is_found(response: str) -> None:
    assert grade(response, "B").components == {"correct": 1.0, "boxed": 1.0}


@pytest.mark.parametrize(
    "response", ["The answer is B.", "Answer: (B) Paris", "The answer would be A. No: the answer is B"]
)
def test_a_letter_behind_the_last_answer_is_found(response: str) -> None:
    assert grade(response, "B. Paris").components == {"correct": 1.0, "boxed": 0.0}


@pytest.mark.parametrize(
    "response",
    [
        "",
        "B",
        "Be sure that it is Paris.",
        r"\boxed{A} and not B",
        r"\boxed{Both}",
        r"\boxed{}",
        r"\boxed{b}",
        "answer",
    ],
)
def test_no_other_letter_counts(response: str) -> None:
    score = grade(response, "B")
    assert (score.reward, score.components["correct"]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("reward_type", "rewards"),
    [
        ("loose", (1.0, 1.0, -1.0, -1.0)),
        ("soft", (1.0, 0.5, -0.5, -1.0)),
        ("strict", (1.0, -1.0, -1.0, -1.0)),
        ("accuracy", (1.0, 1.0, 0.0, 0.0)),
    ],
)
def test_the_reward_is_of_the_table(reward_type: RewardType, rewards: tuple[float, ...]) -> None:
    responses = (r"\boxed{B}", "the answer is B", r"\boxed{C}", "the answer is C")
    assert tuple(grade(response, "B", reward_type=reward_type).reward for response in responses) == rewards


@pytest.mark.parametrize("truth", ["", "b", "42", "(B)"])
def test_a_ground_truth_that_is_no_letter_is_an_error(truth: str) -> None:
    with pytest.raises(ValueError, match="does not begin with the letter of a choice"):
        grade(r"\boxed{B}", truth)
