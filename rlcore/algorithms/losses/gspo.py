"""Group sequence policy optimisation: one ratio a sequence."""

from __future__ import annotations

from torch import Tensor

from rlcore.algorithms.inputs import LossInputs
from rlcore.algorithms.losses.registry import loss
from rlcore.algorithms.losses.surrogate import clipped_surrogate
from rlcore.algorithms.metrics import ratio_sums
from rlcore.algorithms.ratio import log_difference, mean_log_ratio


@loss("gspo", source="Zheng et al., arXiv 2507.18071, equations 5 and 7")
def gspo_loss(
    inputs: LossInputs, *, clip_low: float = 3e-4, clip_high: float = 4e-4, dual_clip: float | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Clip whole sequences, by the geometric mean of their tokens' ratios, since rewards are of whole sequences.

        −min(s·A, clip(s, 1 − clip_low, 1 + clip_high)·A),  s = exp(Σ_t m·(log π − log π_old) / Σ_t m)

    Zheng et al., arXiv 2507.18071, equations 5 and 7; the ranges are those of its section 5.1. Every token of a
    sequence has its loss, so seq-mean-token-mean is the paper's objective. The gradient of a token is that of s,
    and so holds the advantages of its whole sequence: on-policy their mean.

    Options:
        clip_low, clip_high: the range of s, narrow because s is a mean.
        dual_clip: as in ppo.

    Metrics: those of `ratio_sums` (of tokens) and `clipped_surrogate` (tokens of clipped sequences).
    """
    ratio = mean_log_ratio(inputs.logprobs, inputs.old_logprobs, inputs.mask).exp()
    token_loss, clipped = clipped_surrogate(ratio, inputs, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)
    return token_loss, ratio_sums(inputs.logprobs, inputs.old_logprobs, inputs.mask) | clipped


@loss("gspo_token", source="Zheng et al., arXiv 2507.18071, equations 13 and 14")
def gspo_token_loss(
    inputs: LossInputs, *, clip_low: float = 3e-4, clip_high: float = 4e-4, dual_clip: float | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """GSPO whose gradient stays with each token, for advantages that differ within a sequence.

        −min(s_t·A_t, clip(s_t, 1 − clip_low, 1 + clip_high)·A_t),  s_t = sg(s)·π/sg(π)

    Zheng et al., arXiv 2507.18071, equations 13 and 14: the values of gspo, and where all advantages of a sequence
    are equal its gradient too.

    Options and metrics: as in gspo.
    """
    sequence_ratio = mean_log_ratio(inputs.logprobs, inputs.old_logprobs, inputs.mask).exp().detach()
    ratio = sequence_ratio * log_difference(inputs.logprobs, inputs.logprobs.detach(), inputs.mask).exp()
    token_loss, clipped = clipped_surrogate(ratio, inputs, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)
    return token_loss, ratio_sums(inputs.logprobs, inputs.old_logprobs, inputs.mask) | clipped
