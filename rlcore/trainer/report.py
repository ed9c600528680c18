"""What one update reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from rlcore.algorithms.metrics import effective_sample_size, logprob_gap, ratio_quantiles
from rlcore.trainer.objective import TokenLogprobs

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


def batch_metrics(
    shares: Sequence[dict[str, Tensor]], before: Sequence[TokenLogprobs], tokens: Sequence[TokenLogprobs]
) -> dict[str, float]:
    """Metrics of the whole batch from every rank's micro-batches. All data-parallel ranks call it together.

    METRICS are sums of the shares, the ratio's quantiles are those of `tokens`, the last step's. Trainer and
    engine are compared in `before`, the first step's, where the policy is the one that `rollout` was sampled from:
    the batch's own `old` may be the engine's log-probabilities.
    """
    everyone: list[Any] = [None] * parallel_state.get_data_parallel_world_size()
    local = (_sum(shares), _concatenate(before), _concatenate(tokens))
    dist.all_gather_object(everyone, local, group=parallel_state.get_data_parallel_group())
    added = _sum([sums for sums, _, _ in everyone])
    first, last = (_concatenate([parts[index] for parts in everyone]) for index in (1, 2))
    mask = torch.ones_like(last.policy, dtype=torch.bool)
    off_policy = {
        **ratio_quantiles(last.policy, last.old, mask),
        **logprob_gap(first.policy, first.rollout, mask),
        "effective_sample_size": effective_sample_size(first.policy, first.rollout, mask),
    }
    return {name: float(added.get(name, 0.0)) for name in METRICS} | {
        name: float(value) for name, value in off_policy.items()
    }


def _sum(shares: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    names = {name for share in shares for name in share}
    return {name: torch.stack([share[name] for share in shares if name in share]).sum() for name in sorted(names)}


def _concatenate(tokens: Sequence[TokenLogprobs]) -> TokenLogprobs:
    def join(name: str) -> Tensor:
        return torch.cat([torch.empty(0), *(getattr(part, name) for part in tokens)])

    return TokenLogprobs(join("policy"), join("old"), join("rollout"))
