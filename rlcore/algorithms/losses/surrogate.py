"""Pieces that several policy losses share."""

from __future__ import annotations

import torch
from torch import Tensor

from rlcore.algorithms.inputs import LossInputs
from rlcore.algorithms.metrics import token_sum


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """The values where a token trains, 0 elsewhere, whatever stands there."""
    return torch.where(mask.bool(), values, 0.0)


def weighted_policy_gradient(inputs: LossInputs, weights: Tensor | float) -> Tensor:
    """−w·A·log π per token, w without gradient and finite at masked positions too. (B, T)."""
    if isinstance(weights, Tensor):
        weights = weights.detach()
    return -weights * masked(inputs.advantages, inputs.mask) * masked(inputs.logprobs, inputs.mask)


def clipped_surrogate(
    ratio: Tensor, inputs: LossInputs, *, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """−min(r·A, clip(r, 1 − clip_low, 1 + clip_high)·A), and the counts of the tokens that give no gradient.

    Schulman et al., arXiv 1707.06347, equation 7; the two bounds apart as in DAPO, arXiv 2503.14476, equation 10.
    With `dual_clip` c the objective of a token with A < 0 is at least c·A, which bounds the step away from a token
    whose ratio has exploded: Ye et al., arXiv 1912.09729, dual-clip PPO.

    Args:
        ratio: (B, T) or (B, 1), finite at masked positions too.

    Returns:
        (B, T) losses; and clip_fraction_low (A < 0 and r < 1 − clip_low), clip_fraction_high (A > 0 and
        r > 1 + clip_high), clip_fraction_dual (A < 0 and r > c; only with `dual_clip`).

    Raises:
        ValueError: a bound out of range.
    """
    check_clip(clip_low, clip_high)
    advantages = masked(inputs.advantages, inputs.mask)
    objective = torch.minimum(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)
    metrics = {
        "clip_fraction_low": token_sum((advantages < 0) & (ratio < 1 - clip_low), inputs.mask),
        "clip_fraction_high": token_sum((advantages > 0) & (ratio > 1 + clip_high), inputs.mask),
    }
    if dual_clip is not None:
        if dual_clip <= 1:
            raise ValueError(f"dual_clip is the ratio at which losses stop to grow, above 1, not {dual_clip}")
        objective = torch.where(advantages < 0, torch.maximum(objective, dual_clip * advantages), objective)
        metrics["clip_fraction_dual"] = token_sum((advantages < 0) & (ratio > dual_clip), inputs.mask)
    return -objective, metrics


def check_clip(clip_low: float, clip_high: float) -> None:
    """Raises ValueError unless [1 − clip_low, 1 + clip_high] is a range of ratios around 1."""
    if not 0 <= clip_low <= 1:
        raise ValueError(f"clip_low is how far below 1 a ratio may fall, from 0 to 1, not {clip_low}")
    check_not_negative(clip_high=clip_high)


def check_not_negative(**options: float) -> None:
    """Raises ValueError naming the first option below 0."""
    for name, value in options.items():
        if value < 0:
            raise ValueError(f"{name} must not be negative, but is {value}")
