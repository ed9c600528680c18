"""Which responses do not train, and why."""

from __future__ import annotations

import polars as pl

from rlcore.batches import DROP_REASONS
from rlcore.shaping.settings import Band, HistoryBand, MaskConfig
from rlcore.shaping.state import PromptHistories, dataset_prompt_id

FILTERED = ("group_mean", "no_variance")
"""Reasons of groups that are treated as if they had not been sampled."""


def drop_reason(masks: MaskConfig) -> pl.Expr:
    """One of DROP_REASONS, or null where the response trains.

    Of a frame with the columns prompt_id, response_ids, finish_reason, raw_reward (null: not scored), and
    history_mean as from `with_history_mean`. A group's mean and standard deviation are of its scored responses.
    """
    applies = {
        "empty_response": pl.col("response_ids").list.len() == 0,
        "no_reward": pl.col("raw_reward").is_null(),
    }
    if masks.group_mean is not None:
        applies["group_mean"] = _outside(group_mean(), masks.group_mean)
    if masks.group_std_above is not None:
        applies["no_variance"] = group_std() <= masks.group_std_above
    if masks.history is not None:
        applies["history"] = _outside(pl.col("history_mean"), masks.history)
    if masks.difficulty is not None:
        applies["difficulty"] = _outside(group_mean(), masks.difficulty)
    if masks.overlong:
        applies["overlong"] = pl.col("finish_reason") == "length"
    return pl.coalesce(pl.when(applies[reason]).then(pl.lit(reason)) for reason in DROP_REASONS if reason in applies)


def group_mean() -> pl.Expr:
    return pl.col("raw_reward").mean().over("prompt_id")


def group_std() -> pl.Expr:
    """Unbiased; 0 for one reward, and exactly 0 for equal ones, whatever the rounding of their mean."""
    reward = pl.col("raw_reward")
    std = pl.when(reward.max() > reward.min()).then(reward.std(ddof=1)).otherwise(0.0)
    return std.over("prompt_id")


def with_history_mean(
    responses: pl.DataFrame, histories: PromptHistories, band: HistoryBand, iteration: int
) -> pl.DataFrame:
    """The frame with a column history_mean: what the prompt earned per response in earlier iterations.

    Null for a prompt that appeared less often than `min_appearances`, or last more than `max_age` iterations ago.
    """
    speaks = pl.col("appearances") >= band.min_appearances
    if band.max_age is not None:
        speaks &= iteration - pl.col("last_iteration") <= band.max_age
    means = histories.table().select(
        dataset_id="prompt_id", history_mean=pl.when(speaks).then(pl.col("reward_sum") / pl.col("responses"))
    )
    with_id = responses.with_columns(dataset_id=dataset_prompt_id())
    return with_id.join(means, on="dataset_id", how="left", maintain_order="left").drop("dataset_id")


def _outside(mean: pl.Expr, band: Band) -> pl.Expr:
    """Null, which drops nothing, where there is no mean."""
    return (mean <= band.low) | (mean >= band.high)
