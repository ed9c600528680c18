"""Normalisation: every choice of mean and standard deviation against plain Python."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcore.shaping.settings import Scope, ShapingConfig
from rlcore.shaping.state import RunningStatistics, ShapingState
from tests.shaping.responses import Response, groups, shaped

SCOPES: tuple[Scope, ...] = ("group", "batch", "running", "none")


def shaped_rewards(
    responses: Sequence[Response], mean: Scope, std: Scope, state: ShapingState | None = None
) -> list[float | None]:
    frame, _ = shaped(responses, ShapingConfig(norm_mean_type=mean, norm_std_type=std), state=state)
    return frame["shaped_reward"].to_list()


def expected(responses: Sequence[Response], mean: Scope, std: Scope) -> list[float | None]:
    """The definition, one response after the other; all responses so far are those of this batch."""

    def among(scope: Scope, response: Response) -> list[float]:
        return [
            other.reward
            for other in responses
            if other.reward is not None
            and other.domain == response.domain
            and (scope != "group" or other.prompt == response.prompt)
        ]

    values: list[float | None] = []
    for response in responses:
        if response.reward is None:
            values.append(None)
            continue
        centre = 0.0 if mean == "none" else statistics.fmean(among(mean, response))
        scale, of = 1.0, among(std, response)
        if std != "none" and len(set(of)) > 1:
            scale = statistics.stdev(of) + 1e-6
        values.append((response.reward - centre) / scale)
    return values


@pytest.mark.parametrize("mean", SCOPES)
@pytest.mark.parametrize("std", SCOPES)
@given(responses=groups())
def test_every_combination_equals_its_definition(mean: Scope, std: Scope, responses: list[Response]) -> None:
    values = shaped_rewards(responses, mean, std)
    for value, wanted in zip(values, expected(responses, mean, std), strict=True):
        assert value == (wanted if wanted is None else pytest.approx(wanted, rel=1e-6, abs=1e-6))


def test_group_mean_and_batch_std() -> None:
    # Group a: mean 1/2, group b: mean 3. Batch 0 1 2 4: mean 7/4, squares 49/16 + 9/16 + 1/16 + 81/16 = 35/4,
    # std √(35/12) = 1.70783.
    responses = [Response("a", 0.0), Response("a", 1.0), Response("b", 2.0), Response("b", 4.0)]
    assert shaped_rewards(responses, "group", "batch") == pytest.approx(
        [-0.5 / 1.70783, 0.5 / 1.70783, -1 / 1.70783, 1 / 1.70783], abs=1e-5
    )


def test_batch_mean_and_group_std() -> None:
    # Mean 7/4; std of (0, 1) is √(1/2), of (2, 4) it is √2.
    responses = [Response("a", 0.0), Response("a", 1.0), Response("b", 2.0), Response("b", 4.0)]
    assert shaped_rewards(responses, "batch", "group") == pytest.approx(
        [-1.75 / 0.70711, -0.75 / 0.70711, 0.25 / 1.41421, 2.25 / 1.41421], abs=1e-4
    )


def test_running_statistics_take_in_the_batch_before_they_normalise_it() -> None:
    # Before: 0 and 1. With the batch's 3 and 4: mean 2, squares 4 + 1 + 1 + 4 = 10, std √(10/3) = 1.82574.
    state = ShapingState(running={"math": RunningStatistics(count=2, mean=0.5, squares=0.5)})
    values = shaped_rewards([Response("a", 3.0), Response("a", 4.0)], "running", "running", state)
    assert values == pytest.approx([1 / 1.82574, 2 / 1.82574], abs=1e-5)


@pytest.mark.parametrize("scope", ["group", "batch", "running"])
def test_equal_rewards_give_no_scale_to_divide_by(scope: Scope) -> None:
    # The mean of three times 0.1 is not 0.1 in binary; a standard deviation of that rounding would blow them up.
    responses = [Response("a", 0.1)] * 3
    assert shaped_rewards(responses, "none", scope) == [0.1, 0.1, 0.1]
    assert shaped_rewards(responses, scope, scope) == pytest.approx([0.0, 0.0, 0.0], abs=1e-15)


@pytest.mark.parametrize("scope", ["group", "batch", "running"])
def test_a_single_reward_has_a_mean_but_no_deviation(scope: Scope) -> None:
    assert shaped_rewards([Response("a", 3.0)], scope, scope) == [0.0]
    assert shaped_rewards([Response("a", 3.0)], "none", scope) == [3.0]


@given(st.sampled_from(SCOPES), st.sampled_from(SCOPES), st.integers(1, 4))
def test_a_batch_without_any_reward_stays_without(mean: Scope, std: Scope, count: int) -> None:
    assert shaped_rewards([Response("a", None)] * count, mean, std) == [None] * count


@given(groups(domains=("math",)))
def test_group_normalised_rewards_have_mean_0_and_deviation_1(responses: list[Response]) -> None:
    values = shaped_rewards(responses, "group", "group")
    for prompt in {response.prompt for response in responses}:
        group = [
            (response.reward, value)
            for response, value in zip(responses, values, strict=True)
            if response.prompt == prompt and response.reward is not None and value is not None
        ]
        rewards = [reward for reward, _ in group]
        if len(set(rewards)) > 1 and statistics.stdev(rewards) > 0.1:
            assert math.isclose(statistics.fmean(value for _, value in group), 0.0, abs_tol=1e-5)
            assert math.isclose(statistics.stdev(value for _, value in group), 1.0, abs_tol=1e-4)
