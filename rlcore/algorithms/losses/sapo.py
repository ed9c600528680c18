"""Soft adaptive policy optimisation."""

from __future__ import annotations

import torch
from torch import Tensor

from rlcore.algorithms.inputs import LossInputs
from rlcore.algorithms.losses.registry import loss
from rlcore.algorithms.losses.surrogate import masked
from rlcore.algorithms.metrics import ratio_sums, token_sum
from rlcore.algorithms.ratio import log_ratio


@loss("sapo", source="Gao et al., arXiv 2511.20347, equations 5 and 6")
def sapo_loss(
    inputs: LossInputs, *, tau_positive: float = 1.0, tau_negative: float = 1.05
) -> tuple[Tensor, dict[str, Tensor]]:
    """Fade a token's gradient out smoothly as its ratio leaves 1, instead of cutting it off.

        −σ(τ·(r − 1))·(4/τ)·A,  r = π/π_old,  τ = tau_positive where A > 0, tau_negative elsewhere

    Gao et al., arXiv 2511.20347, equations 5 and 6. The gradient is ppo's times 4σ(1 − σ), which is 1 on-policy.

    Options:
        tau_positive, tau_negative: > 0; the larger, the narrower the gate. The paper keeps tau_negative the larger
            one, as raising every other token is what destabilises.

    Metrics beside those of `ratio_sums`: gate, 4σ(1 − σ), the part of the gradient that is left.
    """
    if min(tau_positive, tau_negative) <= 0:
        raise ValueError(f"tau_positive and tau_negative must be above 0, not {tau_positive} and {tau_negative}")
    advantages = masked(inputs.advantages, inputs.mask)
    ratio = log_ratio(inputs.logprobs, inputs.old_logprobs, inputs.mask).exp()
    tau = torch.where(advantages > 0, ratio.new_tensor(tau_positive), ratio.new_tensor(tau_negative))
    sigmoid = torch.sigmoid(tau * (ratio - 1))
    metrics = ratio_sums(inputs.logprobs, inputs.old_logprobs, inputs.mask) | {
        "gate": token_sum(4 * sigmoid * (1 - sigmoid), inputs.mask)
    }
    return -sigmoid * 4 / tau * advantages, metrics
