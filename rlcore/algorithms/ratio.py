"""Importance ratios in log space."""

from __future__ import annotations

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to ± this before exp, so that no ratio overflows float32."""


def log_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """log(π/π_old) per token, clamped; 0 where masked. (B, T).

    Beyond the clamp the gradient is 0.
    """
    difference = torch.where(mask.bool(), logprobs - old_logprobs, 0.0)
    return difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
