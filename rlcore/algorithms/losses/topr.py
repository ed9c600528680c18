"""Tapered off-policy REINFORCE."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rlcore.algorithms.inputs import LossInputs
from rlcore.algorithms.losses.registry import loss
from rlcore.algorithms.losses.surrogate import check_not_negative, weighted_policy_gradient
from rlcore.algorithms.metrics import ratio_sums, token_sum
from rlcore.algorithms.ratio import log_ratio, sum_log_ratio

RATIOS = {"trajectory": sum_log_ratio, "token": log_ratio}


@loss("topr", source="Le Roux et al., arXiv 2503.14286, equation 8")
def topr_loss(
    inputs: LossInputs,
    *,
    ratio: Literal["trajectory", "token"] = "trajectory",
    positive_weight: float = 1.0,
    negative_weight: float = 1.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Learn from good samples however old they are, and let go of bad ones once the policy no longer makes them.

        R ≥ 0:  −A·log π
        R < 0:  −sg(min(Π_t π/μ, 1))·A·log π

    Le Roux et al., arXiv 2503.14286, equation 8. The product runs over the response and is taken in log space; its
    sum is clamped to ±20. μ is `rollout_logprobs` where given, else `old_logprobs`; a token whose log μ is not
    finite is left out of the product and of the loss. R is `sequence_rewards` where given, so these have to be
    signed: of rewards of 0 and 1 none would be bad. Else the sign of each token's advantage decides.

    Options:
        ratio: "trajectory", or "token" for each token's own π/μ as in ROLL.
        positive_weight, negative_weight: factors of the losses of the two classes, ≥ 0.

    Metrics beside those of `ratio_sums`: positive_fraction (tokens with R ≥ 0), clip_fraction_high (tokens with
    R < 0 and a ratio above 1), correction_fraction_nonfinite.
    """
    if ratio not in RATIOS:
        raise ValueError(f"no ratio {ratio!r} of topr; there are {', '.join(RATIOS)}")
    check_not_negative(positive_weight=positive_weight, negative_weight=negative_weight)
    behaviour = inputs.old_logprobs if inputs.rollout_logprobs is None else inputs.rollout_logprobs
    finite = inputs.mask.bool() & behaviour.isfinite()
    log_taper = RATIOS[ratio](inputs.logprobs, behaviour, finite)
    rewards = inputs.advantages if inputs.sequence_rewards is None else inputs.sequence_rewards.unsqueeze(-1)
    positive = rewards >= 0
    weights = torch.where(positive, positive_weight, negative_weight * log_taper.clamp(max=0).exp())
    metrics = ratio_sums(inputs.logprobs, inputs.old_logprobs, inputs.mask) | {
        "positive_fraction": token_sum(positive, inputs.mask),
        "clip_fraction_high": token_sum(~positive & (log_taper > 0), inputs.mask),
        "correction_fraction_nonfinite": token_sum(~behaviour.isfinite(), inputs.mask),
    }
    return weighted_policy_gradient(inputs, torch.where(finite, weights, 0.0)), metrics
