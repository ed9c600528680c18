"""Clipped importance-sampling-weight policy optimisation."""

from __future__ import annotations

from torch import Tensor

from rlcore.algorithms.inputs import LossInputs
from rlcore.algorithms.losses.registry import loss
from rlcore.algorithms.losses.surrogate import check_clip, weighted_policy_gradient
from rlcore.algorithms.metrics import ratio_sums, token_sum
from rlcore.algorithms.ratio import log_ratio


@loss("cispo", source="MiniMax, arXiv 2506.13585, equations 4 and 5")
def cispo_loss(
    inputs: LossInputs, *, clip_low: float = 1.0, clip_high: float = 3.0, unified_mask: bool = False
) -> tuple[Tensor, dict[str, Tensor]]:
    """Clip the weight of a token instead of its update, so that rare tokens that matter keep their gradient.

        −sg(clip(r, 1 − clip_low, 1 + clip_high))·A·log π,  r = π/π_old

    MiniMax-M1, arXiv 2506.13585, equations 4 and 5. The paper sets no lower bound, and does not give the upper one.

    Options:
        clip_low: from 0 to 1; 1 is no lower bound.
        clip_high: ≥ 0; the largest weight is 1 + clip_high.
        unified_mask: drop the tokens that ppo would clip (A > 0 and r > 1 + clip_high, or A < 0 and
            r < 1 − clip_low), equations 6 and 7.

    Metrics beside those of `ratio_sums`: clip_fraction_low (r < 1 − clip_low), clip_fraction_high
    (r > 1 + clip_high), masked_fraction (dropped; only with `unified_mask`).
    """
    check_clip(clip_low, clip_high)
    ratio = log_ratio(inputs.logprobs, inputs.old_logprobs, inputs.mask).exp()
    below, above = ratio < 1 - clip_low, ratio > 1 + clip_high
    weights = ratio.clamp(1 - clip_low, 1 + clip_high)
    metrics = ratio_sums(inputs.logprobs, inputs.old_logprobs, inputs.mask) | {
        "clip_fraction_low": token_sum(below, inputs.mask),
        "clip_fraction_high": token_sum(above, inputs.mask),
    }
    if unified_mask:
        dropped = ((inputs.advantages > 0) & above) | ((inputs.advantages < 0) & below)
        weights = weights.masked_fill(dropped, 0.0)
        metrics["masked_fraction"] = token_sum(dropped, inputs.mask)
    return weighted_policy_gradient(inputs, weights), metrics
