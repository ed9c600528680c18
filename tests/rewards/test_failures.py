"""Graders that fail on more of a batch than they may fail the stage, by name."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcore.rewards.failures import FAILED, check_failed_share
from rlcore.rewards.interface import GradersFailed, ServicesFailed
from rlcore.shaping.settings import RewardConfig

REWARDS = {
    "math": RewardConfig(grader="math", max_failed_share=0.25),
    "qa": RewardConfig.model_validate({"grader": "remote", "options": {"url": "http://judge"}}),
}
STATUSES = ("scored", "timeout", "grader_error", "infra_error")


def graded(**statuses: list[str]) -> pl.DataFrame:
    rows = [(domain, status, f"{status} there") for domain, several in statuses.items() for status in several]
    return pl.DataFrame(rows, schema=["domain", "reward_status", "detail"], orient="row")


def test_as_many_failures_as_allowed_are_none() -> None:
    check_failed_share(REWARDS, graded(math=["scored"] * 3 + ["timeout"], qa=["scored"] * 4 + ["infra_error"]))
    check_failed_share(REWARDS, graded())


def test_graders_that_fail_more_often_are_named_with_what_they_failed_with() -> None:
    statuses = ["scored"] * 2 + ["timeout"] + ["grader_error"] * 3
    with pytest.raises(GradersFailed) as raised:
        check_failed_share(REWARDS, graded(math=statuses, qa=["scored"] * 9))
    assert str(raised.value) == (
        "4 of 6 responses of domain math are without a score (3 grader_error, 1 timeout), which is more than "
        "rewards.math.max_failed_share, 0.25; most often: grader_error there"
    )


def test_services_that_fail_are_another_error_which_is_worth_another_attempt() -> None:
    with pytest.raises(ServicesFailed, match=r"3 of 4 responses of domain qa .*max_failed_share, 0\.2"):
        check_failed_share(REWARDS, graded(qa=["scored", "infra_error", "infra_error", "grader_error"]))


@given(st.lists(st.sampled_from(STATUSES), min_size=1, max_size=40))
def test_it_fails_if_and_only_if_more_failed_than_may(statuses: list[str]) -> None:
    frame = graded(math=statuses)
    share = len(frame.filter(FAILED)) / len(frame)
    try:
        check_failed_share(REWARDS, frame)
    except (GradersFailed, ServicesFailed):
        assert share > 0.25
    else:
        assert share <= 0.25


def test_what_is_graded_again_takes_the_place_of_what_was_there() -> None:
    """As the stage does it: nulls too."""
    before = pl.DataFrame({"sample_id": ["a", "b", "c"], "reward": [1.0, None, 0.5], "detail": ["", "down", ""]})
    again = pl.DataFrame({"sample_id": ["b", "c"], "reward": [0.25, None], "detail": ["", "slow"]})
    after = before.update(again, on="sample_id", include_nulls=True)
    assert after.to_dict(as_series=False) == {
        "sample_id": ["a", "b", "c"],
        "reward": [1.0, 0.25, None],
        "detail": ["", "", "slow"],
    }
