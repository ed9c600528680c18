"""A stage has a deadline; what is not its own work has one of its own."""

from __future__ import annotations

import time

import pytest

from rlcore.compose import compose
from rlcore.config_errors import ConfigError
from rlcore.deadlines import seconds_left, within


def test_there_is_time_until_the_deadline_and_none_after_it() -> None:
    assert seconds_left(otherwise=7.0) == 7.0
    with within(0.05):
        assert 0.0 < seconds_left(otherwise=7.0) <= 0.05
        time.sleep(0.06)
        assert seconds_left(otherwise=7.0) == 0.0
    assert seconds_left(otherwise=7.0) == 7.0


def test_an_inner_deadline_takes_nothing_from_the_outer_one() -> None:
    with within(1.0):
        before = seconds_left(otherwise=0.0)
        with within(30.0):
            assert seconds_left(otherwise=0.0) > 1.0
            time.sleep(0.2)
        assert before - 0.1 < seconds_left(otherwise=0.0) <= before


@pytest.mark.parametrize("value", ["0", "-1", ".inf", ".nan"])
def test_a_deadline_that_never_comes_is_refused(value: str) -> None:
    assert compose("arithmetic", ["deadlines.stall_seconds=5"]).deadlines.stall_seconds == 5.0
    with pytest.raises(ConfigError, match=r"deadlines\.stall_seconds"):
        compose("arithmetic", [f"deadlines.stall_seconds={value}"])
