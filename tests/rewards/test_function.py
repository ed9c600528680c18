"""A reward function of the user's own is found by its path, and what it returns is checked."""

from __future__ import annotations

import pytest

from rlcore.rewards.function import grade

OWN = "tests.rewards.own_rewards"


def test_a_number_is_the_reward() -> None:
    score = grade("hello", "hello", path=f"{OWN}:length")
    assert (score.reward, score.components) == (0.5, {})


def test_a_dictionary_has_the_components_too() -> None:
    score = grade("hello", "hello", path=f"{OWN}:parts")
    assert (score.reward, score.components) == (0.5, {"right": 1.0, "length": 5.0})


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("length", ImportError, "does not say which function it is: expected module:function"),
        ("no.such.module:length", ImportError, "no"),
        (f"{OWN}:width", AttributeError, "width"),
        (f"{OWN}:words", TypeError, "returned 'good': expected a number, or a dictionary of numbers with a reward"),
        (f"{OWN}:incomplete", TypeError, "with a reward"),
        (f"{OWN}:endless", ValueError, "must be finite"),
    ],
)
def test_what_is_no_reward_function_is_named(path: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        grade("hello", "hello", path=path)
