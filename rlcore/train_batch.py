"""Rollouts, rewards and log-probabilities to the batch that the update trains on."""

from __future__ import annotations

import polars as pl
import torch

from rlcore.algorithms import discounted_returns, group_advantages, kl_estimate
from rlcore.batches import TrainBatch
from rlcore.config import AlgorithmConfig
from rlcore.padding import padded, unpadded


def assemble_train_batch(
    rollouts: pl.DataFrame,
    rewards: pl.DataFrame,
    old_logprobs: pl.DataFrame | None,
    ref_logprobs: pl.DataFrame | None,
    algorithm: AlgorithmConfig,
) -> pl.DataFrame:
    """A TrainBatch: one row per response, dropped ones included, with their reason.

    Args:
        rollouts, rewards: RolloutBatch and RewardBatch of the same responses.
        old_logprobs: LogprobBatch of the trainer's policy; None: the engine's log-probabilities stand for it.
        ref_logprobs: LogprobBatch of the reference model; None where no KL is used.
    """
    joined = rollouts.join(rewards.select("sample_id", "reward"), on="sample_id", how="left", maintain_order="left")
    joined = _with_logprobs(joined, old_logprobs, "old_logprobs", default=pl.col("rollout_logprobs"))
    joined = _with_logprobs(joined, ref_logprobs, "ref_logprobs", default=pl.lit(None, dtype=pl.List(pl.Float32)))
    joined = joined.with_columns(drop_reason=_drop_reason(algorithm))
    joined = joined.with_columns(
        loss_mask=pl.when(pl.col("drop_reason").is_null())
        .then("loss_mask")
        .otherwise(pl.col("loss_mask").list.eval(pl.element() & False)),
        sample_weight=pl.lit(1.0),
    )
    advantages, returns = _advantages(joined, algorithm)
    complete = joined.with_columns(advantages=advantages, returns=returns)
    return complete.select(TrainBatch.to_schema().columns.keys())


def _with_logprobs(joined: pl.DataFrame, logprobs: pl.DataFrame | None, name: str, default: pl.Expr) -> pl.DataFrame:
    if logprobs is None:
        return joined.with_columns(default.alias(name))
    return joined.join(
        logprobs.select("sample_id", pl.col("logprobs").alias(name)), on="sample_id", how="left", maintain_order="left"
    )


def _drop_reason(algorithm: AlgorithmConfig) -> pl.Expr:
    reason = (
        pl.when(pl.col("response_ids").list.len() == 0)
        .then(pl.lit("empty_response"))
        .when(pl.col("reward").is_null())
        .then(pl.lit("no_reward"))
    )
    if algorithm.adv_estimator == "grpo" and algorithm.drop_zero_variance_groups:
        equal = pl.col("reward").min().over("prompt_id") == pl.col("reward").max().over("prompt_id")
        reason = reason.when(equal).then(pl.lit("no_variance"))
    return reason.otherwise(None)


def _advantages(joined: pl.DataFrame, algorithm: AlgorithmConfig) -> tuple[pl.Series, pl.Series]:
    """Per-token advantages and returns, as list columns; 0 in rows that are dropped.

    The response's score (its reward, or that reward's advantage in its group) is the reward of its last token, the
    KL penalty is charged to every token, and the advantage is the discounted return of both.
    """
    scores = torch.from_numpy(joined["reward"].cast(pl.Float32).fill_null(float("nan")).to_numpy().copy())
    if algorithm.adv_estimator == "grpo":
        groups = torch.from_numpy(joined["prompt_id"].rank("dense").to_numpy().astype("int64"))
        scores = group_advantages("grpo", scores, groups)
    mask = padded(joined["loss_mask"])
    token_rewards = _on_last_token(scores.nan_to_num(), mask)
    if algorithm.init_kl_coef > 0:
        kl = kl_estimate(padded(joined["old_logprobs"]), padded(joined["ref_logprobs"]), algorithm.kl_penalty)
        token_rewards = token_rewards - algorithm.init_kl_coef * kl * mask
    returns = discounted_returns(token_rewards, mask, algorithm.gamma)
    column = unpadded(returns, like=joined["response_ids"])
    return column, column


def _on_last_token(rewards: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """(N,) rewards as (N, T) token rewards: each on the last token of its row that trains."""
    token_rewards = torch.zeros_like(mask)
    trains = mask.any(dim=1)
    last = mask.shape[1] - 1 - mask.flip(1).argmax(dim=1)
    token_rewards[trains, last[trains]] = rewards[trains]
    return token_rewards
