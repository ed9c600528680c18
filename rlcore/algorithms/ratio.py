"""Importance ratios in log space."""

from __future__ import annotations

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to ± this before exp, so that no ratio overflows float32."""


def log_difference(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """log π − log π_old per token, as it is; 0 where masked. (B, T)."""
    return torch.where(mask.bool(), logprobs - old_logprobs, 0.0)


def log_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """log(π/π_old) per token, clamped; 0 where masked. (B, T).

    Beyond the clamp the gradient is 0.
    """
    return _clamped(log_difference(logprobs, old_logprobs, mask))


def sum_log_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """log Π_t π/π_old of each sequence, its sum clamped; 0 of an empty one. (B, 1)."""
    return _clamped(log_difference(logprobs, old_logprobs, mask).sum(-1, keepdim=True))


def mean_log_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """log of the geometric mean of π/π_old over each sequence, its mean clamped; 0 of an empty one. (B, 1)."""
    return _clamped(sequence_mean(log_difference(logprobs, old_logprobs, mask), mask))


def sequence_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the tokens of each sequence of (B, T) values that are 0 where masked; 0 of an empty one. (B, 1)."""
    return values.sum(-1, keepdim=True) / mask.bool().sum(-1, keepdim=True).clamp(min=1)


def _clamped(log_ratios: Tensor) -> Tensor:
    return log_ratios.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
