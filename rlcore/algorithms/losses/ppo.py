"""Proximal policy optimisation's clipped surrogate."""

from __future__ import annotations

import torch
from torch import Tensor

from rlcore.algorithms.inputs import LossInputs
from rlcore.algorithms.metrics import ratio_sums, token_sum
from rlcore.algorithms.ratio import log_ratio


def ppo_loss(
    inputs: LossInputs, *, clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """−min(r·A, clip(r, 1 − clip_low, 1 + clip_high)·A), with r = π/π_old.

    Schulman et al., arXiv 1707.06347, equation 7; the two bounds apart as in DAPO, arXiv 2503.14476,
    equation 10. With `dual_clip` c > 1 the objective of a token with A < 0 is at least c·A, which bounds
    the step away from a token whose ratio has exploded (Ye et al., arXiv 1912.09729, dual-clip PPO).

    Metrics beside those of `ratio_sums`: clip_fraction_low (A < 0 and r < 1 − clip_low),
    clip_fraction_high (A > 0 and r > 1 + clip_high), clip_fraction_dual (A < 0 and r > c; only with
    `dual_clip`): the tokens that give no gradient.
    """
    advantages = torch.where(inputs.mask.bool(), inputs.advantages, 0.0)
    ratio = log_ratio(inputs.logprobs, inputs.old_logprobs, inputs.mask).exp()
    objective = torch.minimum(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)
    metrics = ratio_sums(inputs.logprobs, inputs.old_logprobs, inputs.mask) | {
        "clip_fraction_low": token_sum((advantages < 0) & (ratio < 1 - clip_low), inputs.mask),
        "clip_fraction_high": token_sum((advantages > 0) & (ratio > 1 + clip_high), inputs.mask),
    }
    if dual_clip is not None:
        objective = torch.where(advantages < 0, torch.maximum(objective, dual_clip * advantages), objective)
        metrics["clip_fraction_dual"] = token_sum((advantages < 0) & (ratio > dual_clip), inputs.mask)
    return -objective, metrics
