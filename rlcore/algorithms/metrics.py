"""What an update reports beside its loss.

`token_sum` and `ratio_sums` give sums that add up over micro-batches. Quantiles and maxima do not: the
other functions take the tokens of the whole batch at once, so the caller keeps the log-probabilities of
every micro-batch, detached.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlcore.algorithms.kl import kl_estimate
from rlcore.algorithms.ratio import log_ratio


def token_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Sum of (B, T) values over the tokens that train: a float scalar without gradient."""
    return torch.where(mask.bool(), values.detach().float(), 0.0).sum()


def ratio_sums(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Token sums of the ratio r = π/π_old and of two estimates of KL(π_old‖π) on samples of π_old.

    Keys: ratio; approx_kl_k1 = −log r; approx_kl_k3 = r − 1 − log r (Schulman, 2020, "Approximating KL
    divergence"). Divide by the number of tokens.
    """
    return {
        "ratio": token_sum(log_ratio(logprobs, old_logprobs, mask).exp(), mask),
        "approx_kl_k1": token_sum(kl_estimate(old_logprobs, logprobs, "k1"), mask),
        "approx_kl_k3": token_sum(kl_estimate(old_logprobs, logprobs, "k3"), mask),
    }


def ratio_quantiles(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """ratio_p01, ratio_p50, ratio_p99 of π/π_old over the tokens that train, linearly interpolated."""
    ratios = log_ratio(logprobs.detach(), old_logprobs, mask).exp()[mask.bool()].float().sort().values
    return {
        "ratio_p01": _quantile(ratios, 0.01),
        "ratio_p50": _quantile(ratios, 0.50),
        "ratio_p99": _quantile(ratios, 0.99),
    }


def logprob_gap(logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """logprob_gap_mean and logprob_gap_max: |log π − log μ| of trainer and engine on the same tokens."""
    gap = torch.where(mask.bool(), (logprobs.detach() - rollout_logprobs).abs(), 0.0)
    largest = gap.amax() if gap.numel() else gap.new_zeros(())
    return {"logprob_gap_mean": gap.sum() / mask.sum().clamp(min=1), "logprob_gap_max": largest}


def effective_sample_size(logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor) -> Tensor:
    """(Σw)² / (N·Σw²) with w = π/μ per token: 1 on-policy, 1/N where one token has all the weight."""
    # In float64: a clamped ratio squared, e^40, leaves float32 no digits for the others.
    weights = log_ratio(logprobs.detach().double(), rollout_logprobs.double(), mask).exp() * mask.bool()
    tiny = torch.finfo(weights.dtype).tiny
    return (weights.sum() ** 2 / (mask.sum() * (weights**2).sum()).clamp(min=tiny)).float()


def _quantile(ordered: Tensor, q: float) -> Tensor:
    """As `torch.quantile`, which refuses more than 16 million elements; 0 of no elements."""
    if len(ordered) == 0:
        return ordered.new_zeros(())
    position = q * (len(ordered) - 1)
    below = int(position)
    return torch.lerp(ordered[below], ordered[min(below + 1, len(ordered) - 1)], position - below)
