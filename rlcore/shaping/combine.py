"""The verdicts of several graders on one response, as one reward."""

from __future__ import annotations

import polars as pl


def combine_graders(verdicts: pl.DataFrame) -> pl.DataFrame:
    """reward = Σ weight · the grader's reward; one row per response, in the order of their first verdicts.

    A response is scored if each of its graders scored it. If one failed, the reward is null and the status is
    that of the first that did: a partial sum would take its failure for a reward of 0.

    Args:
        verdicts: one row per response and grader: sample_id, grader, weight, and reward, reward_status, components,
            detail and seconds as in a RewardBatch.

    Returns:
        The columns of a RewardBatch; seconds are the sum. Where a response has several graders, its components are
        `grader`, that one's reward without the weight, and `grader.component` for each of its own, and its detail is
        `grader: detail` of those that failed. What a single grader reports stands as it is.
    """
    failed = pl.col("reward_status") != "scored"
    detail = pl.when(pl.len() > 1).then(pl.format("{}: {}", "grader", "detail")).otherwise("detail")
    rewards = verdicts.group_by("sample_id", maintain_order=True).agg(
        reward=pl.when(~failed.any()).then((pl.col("weight") * pl.col("reward")).sum()),
        reward_status=pl.col("reward_status").filter(failed).first().fill_null("scored"),
        detail=detail.filter(failed).str.join("; "),
        seconds=pl.col("seconds").sum(),
    )
    rewards = rewards.join(_components(verdicts), on="sample_id", how="left", maintain_order="left")
    empty = pl.lit([], dtype=verdicts.schema["components"])
    components = pl.when(pl.col("reward").is_not_null()).then("components").fill_null(empty)
    return rewards.select("sample_id", "reward", "reward_status", components.alias("components"), "detail", "seconds")


def _components(verdicts: pl.DataFrame) -> pl.DataFrame:
    """sample_id and components: of several graders, each one's reward, followed by what it is made of."""
    order = verdicts.with_row_index("verdict").with_columns(several=pl.len().over("sample_id") > 1)
    totals = order.filter("several").select("verdict", "sample_id", name="grader", value="reward")
    parts = order.explode("components").drop_nulls("components").unnest("components")
    name = pl.when("several").then(pl.format("{}.{}", "grader", "name")).otherwise("name")
    parts = parts.select("verdict", "sample_id", name.alias("name"), "value")
    rows = pl.concat([totals, parts]).sort("verdict", maintain_order=True)
    return rows.group_by("sample_id").agg(components=pl.struct("name", "value"))
