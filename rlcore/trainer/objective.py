"""The training objective of one micro-batch, in the denominators of the whole batch."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl
import torch
from torch import Tensor

from rlcore.algorithms import LossInputs, aggregate, batch_selection, kl_estimate, policy_loss, rollout_correction
from rlcore.algorithms.losses import LOSSES, ratio_denominator
from rlcore.algorithms.metrics import token_sum
from rlcore.config import AlgorithmConfig
from rlcore.padding import padded, unpadded
from rlcore.trainer.microbatches import MicroBatch, per_token


@dataclass(frozen=True, slots=True)
class Totals:
    """What trains in the whole batch, over all micro-batches and ranks."""

    num_tokens: int
    num_sequences: int
    max_length: int
    """Longest response the configuration allows, in tokens."""

    @classmethod
    def of(cls, batch: pl.DataFrame, max_length: int) -> Totals:
        """Counts tokens whose loss mask is true, and rows that have one."""
        trained = batch["loss_mask"].list.eval(pl.element().cast(pl.Int64).sum()).list.first().fill_null(0)
        return cls(int(trained.sum()), int((trained > 0).sum()), max_length)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of the tokens that train, flat (N,), without gradient."""

    policy: Tensor
    old: Tensor
    """The denominator of the ratio that the loss clips."""
    rollout: Tensor


def with_selection(config: AlgorithmConfig, batch: pl.DataFrame, rows: list[int]) -> pl.DataFrame:
    """The batch with a column `selected` where the policy loss treats some tokens of the whole batch apart.

    Args:
        rows: those that train; in the others no token is selected.
    """
    if LOSSES.find(config.policy_loss).select is None:
        return batch
    trains = torch.zeros(len(batch), 1)
    trains[rows] = 1.0
    mask = padded(batch["loss_mask"]) * trains
    old, advantages = padded(batch["old_logprobs"]), padded(batch["advantages"])
    selected = batch_selection(config.policy_loss, old, advantages, mask, **config.loss_options)
    assert selected is not None, "the loss has a `select`"
    column = unpadded(selected.float(), like=batch["response_ids"]).cast(pl.List(pl.Boolean))
    return batch.with_columns(selected=column)


def objective(
    config: AlgorithmConfig,
    batch: pl.DataFrame,
    micro: MicroBatch,
    logprobs: Tensor,
    entropy: Tensor,
    totals: Totals,
) -> tuple[Tensor, dict[str, Tensor], TokenLogprobs]:
    """Σ weight·policy loss + kl_loss_coef·KL − entropy_loss_coef·entropy, aggregated by `loss_agg_mode`.

    The weight of a token is its response's `sample_weight`, times π_old/μ where there is a `rollout_correction`.

    Args:
        batch: the TrainBatch that `micro` was collated from, after `with_selection`.
        logprobs: (B, T) float32 of the policy, with gradient.
        entropy: (B, T) float32.
        totals: of the whole batch, so that the results of its micro-batches add up to its loss and metrics.

    Returns:
        The loss (a scalar), this micro-batch's shares of the metrics, and the log-probabilities of its tokens.

    Raises:
        ValueError: kl_loss_coef is not 0 and a row has no ref_logprobs.
    """

    def column(name: str) -> Tensor:
        return per_token(batch, name, micro)

    def per_row(name: str) -> Tensor:
        return torch.tensor(batch[name][micro.rows].to_list(), dtype=torch.float32, device=mask.device)

    def total(values: Tensor) -> Tensor:
        return aggregate(
            values,
            mask,
            config.loss_agg_mode,
            num_tokens=totals.num_tokens,
            num_sequences=totals.num_sequences,
            max_length=totals.max_length,
        )

    mask = column("loss_mask")
    old, rollout = column("old_logprobs"), column("rollout_logprobs")
    inputs = LossInputs(
        logprobs=logprobs,
        old_logprobs=old,
        advantages=column("advantages"),
        mask=mask,
        rollout_logprobs=rollout,
        sequence_rewards=per_row("score"),
        entropy=entropy,
        selected=column("selected") if "selected" in batch.columns else None,
    )
    token_loss, sums = policy_loss(config.policy_loss, inputs, **config.loss_options)
    weights = per_row("sample_weight")[:, None].expand_as(token_loss)
    if config.rollout_correction is not None:
        correction, corrected = rollout_correction(old, rollout, mask, **config.rollout_correction.model_dump())
        weights, sums = weights * correction, sums | corrected
    loss = share = total(token_loss * weights)
    shares = {"policy_loss": share, "entropy": token_sum(entropy, mask) / totals.num_tokens}
    shares |= {name: value / totals.num_tokens for name, value in sums.items()}
    if config.kl_loss_coef > 0:
        shares["kl_loss"] = total(kl_estimate(logprobs, column("ref_logprobs"), config.kl_loss_type))
        loss = loss + config.kl_loss_coef * shares["kl_loss"]
    if config.entropy_loss_coef > 0:
        loss = loss - config.entropy_loss_coef * total(entropy)
    shares["loss"] = loss
    shares = {name: value.detach().float().cpu() for name, value in shares.items()}
    denominator = ratio_denominator(config.policy_loss, inputs, **config.loss_options)
    tokens = TokenLogprobs(*(values.detach()[mask].cpu() for values in (logprobs, denominator, rollout)))
    return loss, shares, tokens
