"""Truncated importance sampling, as ROLL has it."""

from __future__ import annotations

from torch import Tensor

from rlcore.algorithms.inputs import LossInputs
from rlcore.algorithms.losses.registry import loss
from rlcore.algorithms.losses.surrogate import weighted_policy_gradient
from rlcore.algorithms.metrics import ratio_sums, token_sum
from rlcore.algorithms.ratio import log_ratio


@loss("tis_roll", source="ROLL, arXiv 2506.06122, policy-gradient variant 'tis'")
def tis_roll_loss(inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
    """Weigh each token by its ratio, at most 1: stale tokens count less, none counts more.

        −sg(clip(r, 0, 1))·A·log π,  r = π/π_old

    The variant "tis" of ROLL's policy gradients (arXiv 2506.06122): truncated importance sampling (Ionides, 2008)
    with the bound 1, a token at a time.

    Metrics beside those of `ratio_sums`: clip_fraction_high (r > 1).
    """
    ratio = log_ratio(inputs.logprobs, inputs.old_logprobs, inputs.mask).exp()
    metrics = ratio_sums(inputs.logprobs, inputs.old_logprobs, inputs.mask) | {
        "clip_fraction_high": token_sum(ratio > 1, inputs.mask)
    }
    return weighted_policy_gradient(inputs, ratio.clamp(max=1.0)), metrics
