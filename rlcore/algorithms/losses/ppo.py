"""Proximal policy optimisation's clipped surrogate."""

from __future__ import annotations

from torch import Tensor

from rlcore.algorithms.inputs import LossInputs
from rlcore.algorithms.losses.registry import loss
from rlcore.algorithms.losses.surrogate import clipped_surrogate
from rlcore.algorithms.metrics import ratio_sums
from rlcore.algorithms.ratio import log_ratio


@loss("ppo", source="Schulman et al., arXiv 1707.06347, equation 7")
def ppo_loss(
    inputs: LossInputs, *, clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Follow the importance ratio of each token, but no further than a clipped range around 1.

        −min(r·A, clip(r, 1 − clip_low, 1 + clip_high)·A),  r = π/π_old

    Schulman et al., arXiv 1707.06347, equation 7; the two bounds apart as in DAPO, arXiv 2503.14476, equation 10.

    Options:
        clip_low: ε_low, from 0 to 1.
        clip_high: ε_high; DAPO's is 0.28.
        dual_clip: c > 1, at most −c·A is lost on a token with A < 0 (Ye et al., arXiv 1912.09729, whose c is 3);
            None for no such bound.

    Metrics: those of `ratio_sums` and `clipped_surrogate`.
    """
    ratio = log_ratio(inputs.logprobs, inputs.old_logprobs, inputs.mask).exp()
    token_loss, clipped = clipped_surrogate(ratio, inputs, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)
    return token_loss, ratio_sums(inputs.logprobs, inputs.old_logprobs, inputs.mask) | clipped
