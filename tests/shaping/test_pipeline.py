"""The whole of shaping: order of rows, independence of domains, run state, metrics."""

from __future__ import annotations

import random
from typing import Any

import polars as pl
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from rlcore.batches import RewardBatch, RolloutBatch, validate
from rlcore.shaping.pipeline import SHAPED_COLUMNS, shape, shaping_metrics
from rlcore.shaping.settings import (
    Band,
    HistoryBand,
    LengthPenalty,
    MaskConfig,
    OverlongPenalty,
    RepetitionPenalty,
    ShapingConfig,
    keeps_state,
)
from rlcore.shaping.state import RunningStatistics, ShapingState
from tests.shaping.responses import RESPONSE_LENGTH, Response, batches, groups, shaped

PLAIN = ShapingConfig()
EVERYTHING = ShapingConfig(
    clip_low=-3.0,
    clip_high=3.0,
    scale=0.5,
    overlong=OverlongPenalty(buffer_length=4),
    length=LengthPenalty(coefficient=0.01, free_length=2),
    repetition=RepetitionPenalty(ngram_size=2, coefficient=0.1),
    norm_mean_type="running",
    norm_std_type="batch",
)
MASKS = MaskConfig(group_std_above=0.0, difficulty=Band(), history=HistoryBand(), overlong=True)


def shape_all(
    rollouts: pl.DataFrame, rewards: pl.DataFrame, state: ShapingState | None = None, iteration: int = 1
) -> tuple[pl.DataFrame, ShapingState]:
    return shape(
        rollouts,
        rewards,
        shaping={"math": EVERYTHING, "code": EVERYTHING},
        masks=MASKS,
        state=state or ShapingState(),
        iteration=iteration,
        response_length=RESPONSE_LENGTH,
    )


@given(groups())
def test_without_settings_nothing_changes(responses: list[Response]) -> None:
    rollouts, rewards = batches(responses)
    validate(rollouts, RolloutBatch)
    validate(rewards, RewardBatch)
    frame, state = shaped(responses)
    assert frame.columns == list(SHAPED_COLUMNS)
    assert frame["sample_id"].to_list() == rollouts["sample_id"].to_list()
    assert frame["shaped_reward"].to_list() == [response.reward for response in responses]
    assert state == ShapingState(iteration=1)


@given(groups(), st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing_to_the_last_bit(responses: list[Response], order: random.Random) -> None:
    rollouts, rewards = batches(responses)
    frame, state = shape_all(rollouts, rewards)
    rows, others = list(range(len(responses))), list(range(len(responses)))
    order.shuffle(rows)
    order.shuffle(others)
    permuted, same_state = shape_all(rollouts[rows], rewards[others])
    assert_frame_equal(permuted, frame[rows], check_exact=True)
    assert same_state.model_dump_json() == state.model_dump_json()


@given(groups(), st.randoms(use_true_random=False))
def test_the_names_of_groups_change_nothing(responses: list[Response], order: random.Random) -> None:
    names = sorted({response.prompt for response in responses})
    others = [*names]
    order.shuffle(others)
    renaming = dict(zip(names, others, strict=True))
    renamed = [Response(**{**vars(response), "prompt": renaming[response.prompt]}) for response in responses]
    values = [shape_all(*batches(these))[0].drop("sample_id") for these in (responses, renamed)]
    assert_frame_equal(*values, rel_tol=1e-9, abs_tol=1e-9)


@given(groups(domains=("math",)), groups(domains=("code",)))
def test_domains_do_not_touch_each_other(math: list[Response], code: list[Response]) -> None:
    code = [Response(**{**vars(response), "prompt": f"c-{response.prompt}"}) for response in code]
    alone, state = shape_all(*batches(math))
    together, both = shape_all(*batches(math + code))
    assert_frame_equal(together.filter(pl.col("domain") == "math"), alone, check_exact=True)
    assert both.running["math"] == state.running["math"]


@given(groups(domains=("math",)))
def test_responses_without_a_reward_are_in_no_statistic(responses: list[Response]) -> None:
    scored = [response for response in responses if response.reward is not None]
    assume(scored)
    frame, state = shaped(responses, EVERYTHING, MASKS)
    without, same_state = shaped(scored, EVERYTHING, MASKS)
    kept = frame.drop_nulls("raw_reward")
    assert_frame_equal(kept.drop("sample_id"), without.drop("sample_id"), rel_tol=1e-9, abs_tol=1e-9)
    assert state.histories == same_state.histories
    assert state.running == same_state.running


@given(st.lists(groups(), min_size=2, max_size=4), st.data())
def test_a_run_that_was_resumed_from_json_goes_on_as_if_it_had_not_stopped(
    iterations: list[list[Response]], data: st.DataObject
) -> None:
    stop = data.draw(st.integers(1, len(iterations) - 1))
    straight = resumed = ShapingState()
    for number, responses in enumerate(iterations, start=1):
        expected, straight = shape_all(*batches(responses, epoch=number), straight, number)
        frame, resumed = shape_all(*batches(responses, epoch=number), resumed, number)
        assert_frame_equal(frame, expected, check_exact=True)
        if number == stop:
            resumed = ShapingState.model_validate_json(resumed.model_dump_json())
    assert resumed == straight
    assert resumed.model_dump_json() == straight.model_dump_json()


@given(groups())
def test_the_same_batch_on_the_same_state_gives_the_same_new_state(responses: list[Response]) -> None:
    _, before = shape_all(*batches([Response("p0", 1.0), Response("p0", 0.0)]))
    copy = before.model_dump_json()
    results = [shape_all(*batches(responses), before, 2) for _ in range(2)]
    assert results[0][1] == results[1][1]
    assert_frame_equal(results[0][0], results[1][0], check_exact=True)
    assert before.model_dump_json() == copy


def test_an_iteration_that_the_state_has_is_refused() -> None:
    rollouts, rewards = batches([Response("p", 1.0)])
    _, state = shape_all(rollouts, rewards, iteration=3)
    with pytest.raises(ValueError, match="the shaping state is of iteration 3, so iteration 3 is in it"):
        shape_all(rollouts, rewards, state, iteration=3)


def test_a_domain_without_settings_is_refused() -> None:
    rollouts, rewards = batches([Response("p", 1.0, domain="poetry")])
    with pytest.raises(ValueError, match="no shaping for domain poetry; there is code, math"):
        shape_all(rollouts, rewards)


def test_a_domain_that_a_batch_lacks_keeps_its_statistics() -> None:
    _, first = shape_all(*batches([Response("p", 1.0, "math"), Response("p", 0.0, "math")]))
    _, second = shape_all(*batches([Response("q", 1.0, "code"), Response("q", 0.0, "code")]), first, 2)
    assert second.running["math"] == first.running["math"]
    assert second.running["code"].count == 2


def test_running_statistics_are_of_what_is_normalised() -> None:
    # Group q is filtered. p: 4 and 2, times 1/2, minus 1/4 a token of 4 and 2: 1 and 1/2, mean 3/4, squares 1/8.
    responses = [
        Response("p", 4.0, tokens=(1,) * 4),
        Response("p", 2.0, tokens=(1,) * 2),
        Response("p", None),
        Response("q", 9.0),
        Response("q", 9.0),
    ]
    config = ShapingConfig(scale=0.5, length=LengthPenalty(coefficient=0.25), norm_mean_type="running")
    frame, state = shaped(responses, config, MaskConfig(group_std_above=0.0))
    assert state.running["math"] == RunningStatistics(count=2, mean=0.75, squares=0.125)
    assert frame["shaped_reward"].to_list() == [0.25, -0.25, None, None, None]


@pytest.mark.parametrize(
    ("shaping", "masks", "kept"),
    [
        (PLAIN, MaskConfig(), False),
        (PLAIN, MaskConfig(difficulty=Band(), group_std_above=0.0), False),
        (PLAIN, MaskConfig(history=HistoryBand()), True),
        (ShapingConfig(norm_mean_type="group", norm_std_type="batch"), MaskConfig(), False),
        (ShapingConfig(norm_mean_type="running"), MaskConfig(), True),
        (ShapingConfig(norm_std_type="running"), MaskConfig(), True),
    ],
)
def test_state_is_kept_where_and_only_where_something_reads_it(
    shaping: ShapingConfig, masks: MaskConfig, kept: bool
) -> None:
    assert keeps_state({"math": PLAIN, "code": shaping}, masks) is kept
    _, state = shaped([Response("p", 1.0), Response("p", 0.0)], shaping, masks)
    assert (state != ShapingState(iteration=1)) is kept


@pytest.mark.parametrize(
    "change",
    [
        {"clip_low": 0.5},
        {"clip_high": 0.5},
        {"scale": 2.0},
        {"overlong": OverlongPenalty(buffer_length=8)},
        {"overlong": OverlongPenalty(buffer_length=9, factor=2.0)},
        {"length": LengthPenalty(coefficient=0.1)},
        {"length": LengthPenalty(coefficient=0.1, free_length=2)},
        {"repetition": RepetitionPenalty(ngram_size=1, coefficient=0.1)},
        {"repetition": RepetitionPenalty(ngram_size=2, coefficient=0.1)},
        *({"norm_mean_type": scope} for scope in ("group", "batch", "running")),
        *({"norm_std_type": scope} for scope in ("group", "batch", "running")),
    ],
)
def test_every_option_changes_what_is_computed(change: dict[str, Any]) -> None:
    responses = [
        Response("p", 1.0, tokens=(1, 1, 2, 2)),
        Response("p", 0.25, tokens=(1, 2, 1, 2)),
        Response("q", 0.0, tokens=(1, 2, 3)),
        Response("q", 3.0, tokens=(1, 2, 3)),
    ]
    plain, _ = shaped(responses)
    frame, _ = shaped(responses, ShapingConfig.model_validate(change))
    assert frame["shaped_reward"].to_list() != plain["shaped_reward"].to_list()


def test_metrics_are_means_over_what_was_scored_and_counts_of_what_was_dropped() -> None:
    responses = [
        Response("p", 1.0, "math", tokens=(1,) * 4),
        Response("p", 0.0, "math", tokens=(1,) * 2),
        Response("p", None, "math", tokens=(1,) * 9),
        Response("q", None, "code"),
    ]
    frame, _ = shaped(responses, ShapingConfig(length=LengthPenalty(coefficient=0.125)))
    metrics = shaping_metrics(frame)
    # Lengths 4 and 2 cost 1/2 and 1/4: shaped 1/2 and −1/4.
    assert {name: value for name, value in metrics.items() if "/dropped/" not in name} == {
        "shaping/math/shaped_reward": 0.125,
        "shaping/math/length_penalty": -0.375,
    }
    dropped = {name: value for name, value in metrics.items() if "/dropped/" in name and value}
    assert dropped == {"shaping/math/dropped/no_reward": 1.0, "shaping/code/dropped/no_reward": 1.0}
    assert metrics["shaping/code/dropped/overlong"] == 0.0
