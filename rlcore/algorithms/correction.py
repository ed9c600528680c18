"""Importance weights between the trainer's policy and the engine that sampled."""

from __future__ import annotations

import torch
from torch import Tensor

from rlcore.algorithms.metrics import token_sum
from rlcore.algorithms.ratio import log_ratio, mean_log_ratio, sum_log_ratio

LEVELS = {"token": log_ratio, "geometric": mean_log_ratio, "sequence": sum_log_ratio}
MODES = ("truncate", "mask")


def rollout_correction(
    old_logprobs: Tensor,
    rollout_logprobs: Tensor,
    mask: Tensor,
    *,
    level: str,
    mode: str,
    low: float,
    high: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Weights w = π_old/μ for the token losses of any policy loss: what the engine sampled too often counts less.

        token       w_t = π_old/μ of the token           Yao et al., 2025, "Your efficient RL framework secretly
                                                         brings you off-policy RL training"
        geometric   the geometric mean of these over its sequence
        sequence    their product over its sequence

        truncate    min(w, high)
        mask        w where low ≤ w ≤ high, else 0

    Token losses times weights are aggregated with the original mask: a token that is masked here still counts in
    the denominator. A token whose log μ is not finite has weight 0, and is left out of the mean and the product.
    Log-ratios (of sequences: their mean or sum) are clamped to ±20 before exp.

    Args:
        old_logprobs, rollout_logprobs, mask: (B, T).
        low: lower bound of `mask`, ≥ 0; `truncate` has none.
        high: upper bound, > 0 and ≥ low. Usual are low 0.5 and high 2.

    Returns:
        (B, T) weights without gradient, 0 where masked; and sums over the tokens that train, to be divided by their
        number: correction_weight, correction_weight_square (the effective sample size of N tokens is
        (Σw)²/(N·Σw²)), and the counts correction_fraction_high (w > high), correction_fraction_low (w < low; only
        of `mask`), correction_fraction_nonfinite.

    Raises:
        ValueError: no such level or mode, or bounds out of order.
    """
    if level not in LEVELS:
        raise ValueError(f"no correction level {level!r}; there are {', '.join(LEVELS)}")
    if mode not in MODES:
        raise ValueError(f"no correction mode {mode!r}; there are {', '.join(MODES)}")
    if not 0 <= low <= high or high == 0:
        raise ValueError(f"a correction needs 0 <= low <= high and high > 0, not low={low} and high={high}")
    finite = mask.bool() & rollout_logprobs.isfinite()
    ratio = LEVELS[level](old_logprobs.detach(), rollout_logprobs.detach(), finite).exp().expand_as(old_logprobs)
    metrics = {
        "correction_fraction_high": token_sum(ratio > high, finite),
        "correction_fraction_nonfinite": token_sum(~rollout_logprobs.isfinite(), mask),
    }
    if mode == "truncate":
        weights = ratio.clamp(max=high)
    else:
        weights = torch.where((ratio >= low) & (ratio <= high), ratio, 0.0)
        metrics["correction_fraction_low"] = token_sum(ratio < low, finite)
    weights = torch.where(finite, weights, 0.0)
    metrics["correction_weight"] = token_sum(weights, mask)
    metrics["correction_weight_square"] = token_sum(weights**2, mask)
    return weights, metrics
