"""PPO whose trust region is apart from the policy that sampled."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rlcore.algorithms.correction import rollout_correction
from rlcore.algorithms.inputs import LossInputs
from rlcore.algorithms.losses.registry import loss
from rlcore.algorithms.losses.surrogate import clipped_surrogate
from rlcore.algorithms.metrics import ratio_sums
from rlcore.algorithms.ratio import log_ratio


def proximal_logprobs(inputs: LossInputs, *, approximate_old: float | None) -> Tensor:
    """log π_old: `old_logprobs`, or between log μ and log π at `approximate_old`. (B, T), without gradient."""
    if approximate_old is None:
        return inputs.old_logprobs
    if not 0 <= approximate_old <= 1:
        raise ValueError(f"approximate_old is a place between the two policies, 0 to 1, not {approximate_old}")
    rollout_logprobs = inputs.rollout_logprobs
    assert rollout_logprobs is not None, "`needs` names it"
    logprobs = inputs.logprobs.detach()
    behaviour = torch.where(rollout_logprobs.isfinite(), rollout_logprobs, logprobs)
    return torch.lerp(behaviour, logprobs, approximate_old)


@loss(
    "decoupled_ppo",
    source="Fu et al. (AReaL), arXiv 2505.24298, equation 5; Hilton et al., arXiv 2110.00641",
    needs=["rollout_logprobs"],
    denominator=proximal_logprobs,
)
def decoupled_ppo_loss(
    inputs: LossInputs,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    weight: Literal["truncate", "mask"] = "truncate",
    weight_low: float = 0.5,
    weight_high: float = 2.0,
    approximate_old: float | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Clip against a recent policy, and correct by importance weights for the older one that sampled.

        −sg(w)·min(u·A, clip(u, 1 − clip_low, 1 + clip_high)·A),  u = π/π_old,  w = π_old/μ

    AReaL, arXiv 2505.24298, section 5.2, equation 5, after Hilton et al., arXiv 2110.00641, "Decoupled policy
    objectives". μ is `rollout_logprobs`; a token whose log μ is not finite has weight 0.

    With `approximate_old` α the forward pass that computes π_old is not needed:

        log π_old ≈ log μ + α·(sg(log π) − log μ)

    and `old_logprobs` is not read. Li et al., arXiv 2512.06547 (A-3PO), whose α = (d − 1)/d is of a token sampled d
    policy versions before π; here it is one for all tokens.

    Options:
        clip_low, clip_high, dual_clip: as in ppo, of u.
        weight: what bounds w, "truncate" to min(w, weight_high) or "mask" to 0 outside [weight_low, weight_high];
            AReaL masks above 5.
        weight_low, weight_high: 0 ≤ weight_low ≤ weight_high.
        approximate_old: α from 0 (π_old = μ) to 1 (π_old = π); None to read `old_logprobs`.

    Metrics: those of `ratio_sums` (of u), `clipped_surrogate` and `rollout_correction`.
    """
    rollout_logprobs = inputs.rollout_logprobs
    assert rollout_logprobs is not None, "`needs` names it"
    old_logprobs = proximal_logprobs(inputs, approximate_old=approximate_old)
    weights, corrected = rollout_correction(
        old_logprobs, rollout_logprobs, inputs.mask, level="token", mode=weight, low=weight_low, high=weight_high
    )
    ratio = log_ratio(inputs.logprobs, old_logprobs, inputs.mask).exp()
    token_loss, clipped = clipped_surrogate(ratio, inputs, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)
    return weights * token_loss, ratio_sums(inputs.logprobs, old_logprobs, inputs.mask) | clipped | corrected
