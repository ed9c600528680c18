"""Rollouts, rewards and log-probabilities to the batch that the update trains on."""

from __future__ import annotations

import polars as pl
import torch
from torch import Tensor

from rlcore.algorithms import discounted_returns, gae, group_advantages, kl_estimate, sample_weights, whiten
from rlcore.algorithms.advantages import ESTIMATORS
from rlcore.batches import GREEDY, TrainBatch, is_greedy
from rlcore.config import AlgorithmConfig, Config
from rlcore.padding import padded, unpadded
from rlcore.reports import RunState
from rlcore.run_state import kl_controller, shaped_rewards
from rlcore.shaping.pipeline import shape
from rlcore.shaping.settings import MaskConfig
from rlcore.shaping.state import ShapingState


def assemble_train_batch(
    config: Config,
    iteration: int,
    rollouts: pl.DataFrame,
    rewards: pl.DataFrame,
    old_logprobs: pl.DataFrame | None,
    ref_logprobs: pl.DataFrame | None,
    values: pl.DataFrame | None,
    previous: RunState | None,
) -> pl.DataFrame:
    """A TrainBatch: one row per response, dropped ones included, with their reason. Greedy baselines are not in it.

    Args:
        rollouts, rewards: RolloutBatch and RewardBatch of the same responses.
        old_logprobs: LogprobBatch of the trainer's policy; None: the engine's log-probabilities stand for it.
        ref_logprobs: LogprobBatch of the reference model; None where no KL is used.
        values: ValueBatch of the critic; None where there is none.
        previous: the run's state after the iteration before; None in the first, and where the run has none.
    """
    responses = rollouts.filter(~is_greedy())
    shaped, _ = shaped_rewards(config, iteration, responses, rewards, previous)
    joined = responses.join(shaped.drop("domain"), on="sample_id", how="left", maintain_order="left")
    absent = pl.lit(None, dtype=pl.List(pl.Float32))
    joined = _with_scores(joined, old_logprobs, "logprobs", "old_logprobs", default=pl.col("rollout_logprobs"))
    joined = _with_scores(joined, ref_logprobs, "logprobs", "ref_logprobs", default=absent)
    joined = _with_scores(joined, values, "values", "values", default=absent)
    joined = joined.with_columns(
        # A response that is dropped still counts in baselines, with the length that it has.
        length=pl.col("loss_mask").list.sum(),
        loss_mask=pl.when(pl.col("drop_reason").is_null())
        .then("loss_mask")
        .otherwise(pl.col("loss_mask").list.eval(pl.element() & False)),
    )
    scores = _scores(config, joined, rollouts, rewards)
    advantages, returns = _token_advantages(config.algorithm, joined, scores, kl_controller(config, previous).coef)
    complete = joined.with_columns(
        score=pl.Series(scores.double().numpy()),
        advantages=unpadded(advantages, like=joined["response_ids"]),
        returns=unpadded(returns, like=joined["response_ids"]),
        sample_weight=_sample_weights(config.algorithm, joined),
    )
    return complete.select(TrainBatch.to_schema().columns.keys())


def _with_scores(
    joined: pl.DataFrame, scores: pl.DataFrame | None, column: str, name: str, default: pl.Expr
) -> pl.DataFrame:
    """Per-token `column` of a model's scores, as `name`."""
    if scores is None:
        return joined.with_columns(default.alias(name))
    return joined.join(
        scores.select("sample_id", pl.col(column).alias(name)), on="sample_id", how="left", maintain_order="left"
    )


def _scores(config: Config, joined: pl.DataFrame, rollouts: pl.DataFrame, rewards: pl.DataFrame) -> Tensor:
    """(N,) float32: what each response is worth to `adv_estimator`; 0 where it has no shaped reward."""
    algorithm = config.algorithm
    inputs: dict[str, Tensor] = {}
    needed = ESTIMATORS.find(algorithm.adv_estimator).inputs
    if "lengths" in needed:
        inputs["lengths"] = _tensor(joined["length"])
    if "greedy_rewards" in needed:
        inputs["greedy_rewards"] = _tensor(_greedy_rewards(config, joined, rollouts, rewards))
    groups = torch.from_numpy(joined["prompt_id"].rank("dense").to_numpy().astype("int64"))
    shaped = _tensor(joined["shaped_reward"])
    scores = group_advantages(algorithm.adv_estimator, shaped, groups, **inputs, **algorithm.adv_estimator_options)
    return torch.where(shaped.isnan(), 0.0, scores)


def _greedy_rewards(config: Config, joined: pl.DataFrame, rollouts: pl.DataFrame, rewards: pl.DataFrame) -> pl.Series:
    """Per response the shaped reward of its prompt's greedy one; null where that was not scored."""
    greedy, _ = shape(
        rollouts.filter(is_greedy()),
        rewards,
        shaping=config.shaping,
        masks=MaskConfig(),
        state=ShapingState(),
        iteration=1,
        response_length=config.rollout.response_length,
    )
    by_prompt = greedy.select(prompt_id=pl.col("sample_id").str.strip_suffix(GREEDY), greedy="shaped_reward")
    return joined.select("prompt_id").join(by_prompt, on="prompt_id", how="left", maintain_order="left")["greedy"]


def _token_advantages(
    algorithm: AlgorithmConfig, joined: pl.DataFrame, scores: Tensor, kl_coef: float
) -> tuple[Tensor, Tensor]:
    """(N, T) advantages and returns; 0 in rows that are dropped.

    The response's score is the reward of its last token, the KL penalty is charged to every token, and the advantage
    is the discounted return of both, or what is estimated of it with the critic's values.
    """
    mask = padded(joined["loss_mask"])
    token_rewards = _on_last_token(scores, mask)
    if kl_coef > 0:
        kl = kl_estimate(padded(joined["old_logprobs"]), padded(joined["ref_logprobs"]), algorithm.kl_penalty)
        token_rewards = token_rewards - kl_coef * kl * mask
    tokens = ESTIMATORS.find(algorithm.adv_estimator).tokens
    if tokens == "gae":
        advantages, returns = gae(token_rewards, padded(joined["values"]), mask, algorithm.gamma, algorithm.lambd)
    else:
        advantages = returns = discounted_returns(token_rewards, mask, algorithm.gamma)
    if tokens == "whitened_returns" or algorithm.whiten_advantages:
        advantages = whiten(advantages, mask)
    advantages = advantages * mask
    if algorithm.advantage_clip is not None:
        advantages = advantages.clamp(-algorithm.advantage_clip, algorithm.advantage_clip)
    return advantages, returns


def _on_last_token(rewards: Tensor, mask: Tensor) -> Tensor:
    """(N,) rewards as (N, T) token rewards: each on the last token of its row that trains."""
    token_rewards = torch.zeros_like(mask)
    trains = mask.any(dim=1)
    last = mask.shape[1] - 1 - mask.flip(1).argmax(dim=1)
    token_rewards[trains, last[trains]] = rewards[trains]
    return token_rewards


def _sample_weights(algorithm: AlgorithmConfig, joined: pl.DataFrame) -> pl.Series:
    """Weights by difficulty, 1 − the group's mean raw reward, and by length, as far as they are asked for."""
    trains = torch.from_numpy(joined["drop_reason"].is_null().to_numpy().copy())
    difficulty = joined.select(1.0 - pl.col("raw_reward").mean().over("prompt_id")).to_series()
    weights = sample_weights(
        trains,
        difficulty=_tensor(difficulty) if algorithm.difficulty_loss_weight else None,
        lengths=_tensor(joined["length"]) if algorithm.length_loss_weight else None,
    )
    return pl.Series(weights.double().numpy())


def _tensor(column: pl.Series) -> Tensor:
    """(N,) float32, NaN for null."""
    return torch.from_numpy(column.cast(pl.Float32).fill_null(float("nan")).to_numpy().copy())
