"""What one update reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlcore.algorithms.metrics import effective_sample_size, logprob_gap, ratio_quantiles
from rlcore.trainer.objective import TokenLogprobs
from rlcore.trainer.world import computes_outputs

METRICS = (
    "loss",
    "policy_loss",
    "kl_loss",
    "entropy",
    "clip_fraction_low",
    "clip_fraction_high",
    "clip_fraction_dual",
    "approx_kl_k1",
    "approx_kl_k3",
    "ratio",
)
"""Shares that add up over micro-batches and ranks. One that an objective does not have is 0."""

VALUE_METRICS = ("value_loss", "value_mean", "return_mean", "value_clip_fraction")
"""The critic's shares, likewise."""

FIRST_STEP = ("logprob_gap_mean", "logprob_gap_max", "effective_sample_size")
"""Trainer against engine: of the first step, where the policy is still the one that the rollouts were sampled from."""

LAST_STEP = (
    "ratio",
    "ratio_p01",
    "ratio_p50",
    "ratio_p99",
    "clip_fraction_low",
    "clip_fraction_high",
    "approx_kl_k1",
    "approx_kl_k3",
)
"""How far the policy has moved: of the last step too, which is the furthest from π_old."""


def policy_metrics(shares: Sequence[dict[str, Tensor]], tokens: Sequence[TokenLogprobs]) -> dict[str, float]:
    """Metrics of one optimizer step from every rank's micro-batches. All ranks call it together.

    METRICS and what else the shares name are sums of the shares; the ratio's quantiles and the comparison of trainer
    and engine are of all the step's tokens. `rollout` is what trainer and engine are compared by: the batch's own
    `old` may be the engine's log-probabilities.
    """
    everyone = _from_all_ranks((_sum(shares), _concatenate(tokens)))
    added = _sum([sums for sums, _ in everyone])
    joined = _concatenate([part for _, part in everyone])
    mask = torch.ones_like(joined.policy, dtype=torch.bool)
    off_policy = {
        **ratio_quantiles(joined.policy, joined.old, mask),
        **logprob_gap(joined.policy, joined.rollout, mask),
        "effective_sample_size": effective_sample_size(joined.policy, joined.rollout, mask),
    }
    return dict.fromkeys(METRICS, 0.0) | {name: float(value) for name, value in (added | off_policy).items()}


def value_metrics(shares: Sequence[dict[str, Tensor]]) -> dict[str, float]:
    """As `policy_metrics`, of one of the critic's steps: VALUE_METRICS."""
    added = _sum(_from_all_ranks(_sum(shares)))
    return dict.fromkeys(VALUE_METRICS, 0.0) | {name: float(value) for name, value in added.items()}


def over_steps(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """Metrics of an update from those of its optimizer steps, at least one.

    Means over the steps; those in FIRST_STEP are the first step's. LAST_STEP are there once more, as
    `last_step_<name>`.
    """
    mean = {name: sum(step[name] for step in steps) / len(steps) for name in steps[0]}
    first = {name: steps[0][name] for name in FIRST_STEP if name in mean}
    return mean | first | {f"last_step_{name}": steps[-1][name] for name in LAST_STEP if name in mean}


def _from_all_ranks(local: Any) -> list[Any]:
    """What each data-parallel replica says, on all ranks."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, local if computes_outputs() else None)
    return [part for part in everyone if part is not None]


def _sum(shares: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    names = {name for share in shares for name in share}
    return {name: torch.stack([share[name] for share in shares if name in share]).sum() for name in sorted(names)}


def _concatenate(tokens: Sequence[TokenLogprobs]) -> TokenLogprobs:
    def join(name: str) -> Tensor:
        return torch.cat([torch.empty(0), *(getattr(part, name) for part in tokens)])

    return TokenLogprobs(join("policy"), join("old"), join("rollout"))
