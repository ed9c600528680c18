"""Geometric-mean policy optimisation."""

from __future__ import annotations

import torch
from torch import Tensor

from rlcore.algorithms.inputs import LossInputs
from rlcore.algorithms.losses.registry import loss
from rlcore.algorithms.losses.surrogate import check_not_negative, masked
from rlcore.algorithms.metrics import ratio_sums, token_sum
from rlcore.algorithms.ratio import LOG_RATIO_LIMIT, log_difference, sequence_mean


@loss("gmpo", source="Zhao et al., arXiv 2507.20673, equation 4")
def gmpo_loss(inputs: LossInputs, *, clip_low: float = 0.4, clip_high: float = 0.4) -> tuple[Tensor, dict[str, Tensor]]:
    """Weigh a sequence by the geometric mean of its clipped token ratios, which no single token can dominate.

        −s·A,  s = exp(Σ_t m·c_t / Σ_t m),  d = log π − log π_old,
        c = min(d, clip_high) where A > 0, max(d, −clip_low) elsewhere

    Zhao et al., arXiv 2507.20673, equation 4, written in log space as in its algorithm 1. Tokens are clipped one by
    one and before the mean, unlike in gspo; the range is wide, e^−0.4 to e^0.4. As in gspo every token of a
    sequence has the loss of s, and seq-mean-token-mean is the paper's objective.

    Options:
        clip_low, clip_high: bounds of the log-ratio below and above, ≥ 0.

    Metrics beside those of `ratio_sums`: clip_fraction_low (A ≤ 0 and d < −clip_low), clip_fraction_high (A > 0 and
    d > clip_high), the tokens that give no gradient.
    """
    check_not_negative(clip_low=clip_low, clip_high=clip_high)
    advantages = masked(inputs.advantages, inputs.mask)
    good = advantages > 0
    differences = log_difference(inputs.logprobs, inputs.old_logprobs, inputs.mask)
    clipped = torch.where(good, differences.clamp(max=clip_high), differences.clamp(min=-clip_low))
    log_mean = sequence_mean(clipped, inputs.mask).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    metrics = ratio_sums(inputs.logprobs, inputs.old_logprobs, inputs.mask) | {
        "clip_fraction_low": token_sum(~good & (differences < -clip_low), inputs.mask),
        "clip_fraction_high": token_sum(good & (differences > clip_high), inputs.mask),
    }
    return -log_mean.exp() * advantages, metrics
