"""Masks and filters: what trains, by raw rewards, and what statistics still see."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcore.shaping.masks import DROP_REASONS
from rlcore.shaping.settings import Band, HistoryBand, LengthPenalty, MaskConfig, ShapingConfig
from rlcore.shaping.state import PromptHistories, ShapingState
from tests.shaping.responses import Response, groups, shaped

BAND = Band(low=0.1, high=0.95)


def reasons(
    responses: list[Response], masks: MaskConfig, state: ShapingState | None = None, iteration: int = 9
) -> list[str | None]:
    return shaped(responses, masks=masks, state=state, iteration=iteration)[0]["drop_reason"].to_list()


def history(appearances: int, responses: int, reward_sum: float, last_iteration: int) -> ShapingState:
    """Of the prompt p."""
    table = PromptHistories(
        prompt_id=("p",),
        appearances=(appearances,),
        responses=(responses,),
        reward_sum=(reward_sum,),
        last_iteration=(last_iteration,),
    )
    return ShapingState(iteration=last_iteration, histories=table)


def test_nothing_is_masked_unless_asked() -> None:
    responses = [Response("p", 1.0, tokens=(1,) * 10, finish_reason="length"), Response("q", 0.0), Response("q", 0.0)]
    assert reasons(responses, MaskConfig()) == [None, None, None]


def test_responses_without_tokens_or_reward_never_train() -> None:
    responses = [Response("p", 1.0, tokens=()), Response("p", None, tokens=()), Response("p", None), Response("p", 0.0)]
    assert reasons(responses, MaskConfig()) == ["empty_response", "empty_response", "no_reward", None]


@pytest.mark.parametrize(("field", "reason"), [("difficulty", "difficulty"), ("group_mean", "group_mean")])
def test_groups_that_are_too_hard_or_too_easy(field: str, reason: str) -> None:
    # Means 0, 1/2, 1, and 0.1: the bounds themselves are outside.
    rewards = {"none": [0.0, 0.0], "half": [0.0, 1.0], "all": [1.0, 1.0], "bound": [0.1, 0.1]}
    responses = [Response(prompt, reward) for prompt, group in rewards.items() for reward in group]
    masked = reasons(responses, MaskConfig.model_validate({field: BAND}))
    assert masked == [reason, reason, None, None, reason, reason, reason, reason]


def test_a_mean_is_of_the_responses_that_were_scored() -> None:
    responses = [Response("p", 1.0), Response("p", None)]
    assert reasons(responses, MaskConfig(difficulty=BAND)) == ["difficulty", "no_reward"]


def test_groups_without_variance() -> None:
    # Three times 0.1 has a mean that is not 0.1; a group of one has no variance.
    responses = [*[Response("p", 0.1)] * 3, Response("q", 1.0), Response("r", 0.0), Response("r", 1.0)]
    assert reasons(responses, MaskConfig(group_std_above=0.0)) == ["no_variance"] * 4 + [None, None]
    # 0 and 1 have the standard deviation √(1/2) = 0.70711.
    assert reasons(responses, MaskConfig(group_std_above=0.70))[-2:] == [None, None]
    assert reasons(responses, MaskConfig(group_std_above=0.71))[-2:] == ["no_variance", "no_variance"]


def test_truncated_responses() -> None:
    responses = [Response("p", 1.0, finish_reason="length"), Response("p", 0.0)]
    assert reasons(responses, MaskConfig(overlong=True)) == ["overlong", None]


def test_the_mask_by_history_judges_earlier_iterations_alone() -> None:
    masks = MaskConfig(history=HistoryBand(low=0.1, high=0.95))
    now = [Response("p", 1.0), Response("p", 0.0), Response("q", 0.0)]
    # 8 of 8 before: too easy, whatever p earns now; q was never seen.
    assert reasons(now, masks, history(1, 8, 8.0, last_iteration=2)) == ["history", "history", None]
    assert reasons(now, masks, history(1, 8, 7.0, last_iteration=2)) == [None, None, None]


def test_a_short_or_an_old_history_says_nothing() -> None:
    too_easy = history(2, 16, 16.0, last_iteration=4)
    now = [Response("p", 0.0)]

    def masked(min_appearances: int, max_age: int | None) -> list[str | None]:
        band = HistoryBand(min_appearances=min_appearances, max_age=max_age)
        return reasons(now, MaskConfig(history=band), too_easy, iteration=9)

    assert masked(2, None) == ["history"]
    assert masked(3, None) == [None]
    assert masked(2, 5) == ["history"]
    assert masked(2, 4) == [None]


def test_masked_rewards_stay_in_the_statistics_and_filtered_ones_do_not() -> None:
    # Group q: all right. Batch mean with it (0 + 1 + 1 + 1)/4 = 3/4, without it 1/2.
    responses = [Response("p", 0.0), Response("p", 1.0), Response("q", 1.0), Response("q", 1.0)]
    config = ShapingConfig(norm_mean_type="batch")
    masked, _ = shaped(responses, config, MaskConfig(difficulty=BAND))
    assert masked["shaped_reward"].to_list() == [-0.75, 0.25, 0.25, 0.25]
    filtered, _ = shaped(responses, config, MaskConfig(group_mean=BAND))
    assert filtered["shaped_reward"].to_list() == [-0.5, 0.5, None, None]


def test_masks_judge_raw_rewards() -> None:
    # The length penalty gives the group a variance, and a mean inside the band; the raw rewards have neither.
    responses = [Response("p", 1.0, tokens=(1,)), Response("p", 1.0, tokens=(1, 2, 3))]
    config = ShapingConfig(scale=0.5, length=LengthPenalty(coefficient=0.1))
    frame, _ = shaped(responses, config, MaskConfig(difficulty=BAND))
    assert frame["shaped_reward"].to_list() == pytest.approx([0.4, 0.2])
    assert frame["drop_reason"].to_list() == ["difficulty", "difficulty"]
    frame, _ = shaped(responses, config, MaskConfig(group_std_above=0.0))
    assert frame["drop_reason"].to_list() == ["no_variance", "no_variance"]


def test_the_first_reason_in_the_order_of_precedence_is_given() -> None:
    # Every mask applies to the one scored response with tokens.
    masks = {
        "group_mean": BAND,
        "group_std_above": 0.0,
        "history": HistoryBand(),
        "difficulty": BAND,
        "overlong": True,
    }
    names = {"group_std_above": "no_variance"}
    for count in range(len(masks), 0, -1):
        active = dict(list(masks.items())[-count:])
        first = next(iter(active))
        response = Response("p", 1.0, finish_reason="length")
        assert reasons([response], MaskConfig.model_validate(active), history(1, 4, 4.0, 2)) == [
            names.get(first, first)
        ]


@given(groups(), st.booleans(), st.sampled_from([None, 0.0, 0.5]), st.sampled_from([None, BAND]))
def test_a_reward_is_shaped_if_and_only_if_it_is_scored_and_not_filtered(
    responses: list[Response], overlong: bool, std: float | None, band: Band | None
) -> None:
    frame, _ = shaped(responses, masks=MaskConfig(group_mean=band, group_std_above=std, overlong=overlong))
    assert frame["raw_reward"].to_list() == [response.reward for response in responses]
    assert set(frame["drop_reason"].drop_nulls()) <= set(DROP_REASONS)
    absent = frame.filter(pl.col("shaped_reward").is_null())
    assert absent.filter(pl.col("raw_reward").is_not_null())["drop_reason"].is_in(["group_mean", "no_variance"]).all()
    assert frame.filter(pl.col("drop_reason").is_null())["shaped_reward"].null_count() == 0
