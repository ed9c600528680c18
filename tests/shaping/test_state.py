"""Running statistics and prompt histories over many batches."""

from __future__ import annotations

import statistics

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcore.shaping.settings import HistoryBand, MaskConfig
from rlcore.shaping.state import PromptHistories, RunningStatistics, ShapingState
from tests.shaping.responses import Response, batches, shaped

VALUES = st.floats(-100, 100, width=32)


def of(values: list[float | None]) -> RunningStatistics:
    return RunningStatistics.of(pl.Series(values, dtype=pl.Float64))


@given(st.lists(st.lists(st.one_of(st.none(), VALUES), max_size=6), max_size=6))
def test_merged_statistics_are_those_of_all_values(parts: list[list[float | None]]) -> None:
    merged = RunningStatistics()
    for part in parts:
        merged = merged.merged(of(part))
    values = [value for part in parts for value in part if value is not None]
    assert merged.count == len(values)
    if values:
        assert merged.mean == pytest.approx(statistics.fmean(values), rel=1e-9, abs=1e-9)
    if len(set(values)) > 1:
        assert (merged.std or 0.0) == pytest.approx(statistics.stdev(values), rel=1e-6, abs=1e-9)
    else:
        assert merged.std is None


def test_merging_by_hand() -> None:
    # (1, 3): mean 2, squares 2. (5): mean 5. Together mean 3, squares 4 + 0 + 4 = 8, std √(8/2) = 2.
    merged = of([1.0, 3.0]).merged(of([5.0]))
    assert merged == RunningStatistics(count=3, mean=3.0, squares=8.0)
    assert merged.std == 2.0


def histories_of(*iterations: tuple[int, list[Response]]) -> PromptHistories:
    state = ShapingState()
    for number, responses in iterations:
        _, state = shaped(responses, masks=MaskConfig(history=HistoryBand()), state=state, iteration=number)
    return state.histories


def test_histories_add_up_over_iterations_and_epochs() -> None:
    histories = histories_of(
        (1, [Response("b", 1.0), Response("b", 0.0), Response("b", None), Response("a", None)]),
        (4, [Response("b", 1.0), Response("c@home", 0.5)]),
    )
    # Never scored, a has no history. A name may hold the sign that precedes the epoch.
    assert histories == PromptHistories(
        prompt_id=("b", "c@home"),
        appearances=(2, 1),
        responses=(3, 1),
        reward_sum=(2.0, 0.5),
        last_iteration=(4, 4),
    )


def test_a_prompt_in_two_epochs_of_one_batch_appears_twice() -> None:
    frames = [batches([Response("p", 1.0), Response("p", 0.0)], epoch=epoch) for epoch in (0, 1)]
    groups = pl.concat([rollouts for rollouts, _ in frames]).select("prompt_id")
    groups = groups.with_columns(raw_reward=pl.Series([1.0, 0.0, 1.0, 0.0]))
    histories = PromptHistories().extended(groups, iteration=7)
    assert histories.table().row(0) == ("p", 2, 4, 2.0, 7)


def test_equal_states_have_equal_json_whatever_came_first() -> None:
    one, other = RunningStatistics(count=1, mean=0.1), RunningStatistics(count=2, mean=1 / 3, squares=1e-17)
    states = [ShapingState(running={"a": one, "b": other}), ShapingState(running={"b": other, "a": one})]
    assert states[0].model_dump_json() == states[1].model_dump_json()
    assert ShapingState.model_validate_json(states[0].model_dump_json()) == states[1]
