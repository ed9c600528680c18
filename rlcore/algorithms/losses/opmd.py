"""Online policy mirror descent in its simple form."""

from __future__ import annotations

from torch import Tensor

from rlcore.algorithms.inputs import LossInputs
from rlcore.algorithms.losses.registry import loss
from rlcore.algorithms.losses.surrogate import check_not_negative, weighted_policy_gradient
from rlcore.algorithms.metrics import ratio_sums


@loss("opmd", source="Pan et al. (Trinity-RFT), arXiv 2505.17826")
def opmd_loss(inputs: LossInputs, *, tau: float = 1.0) -> tuple[Tensor, dict[str, Tensor]]:
    """The policy gradient made smaller by a regulariser towards the current policy, valid off-policy.

        −A·log π/(1 + τ)

    Pan et al., "Trinity-RFT", arXiv 2505.17826. Which baseline the advantages subtract from the rewards of a group,
    their mean or τ·log(mean(exp(R/τ))), is the advantages' business.

    Options:
        tau: τ ≥ 0, the strength of the regulariser.

    Metrics: those of `ratio_sums`.
    """
    check_not_negative(tau=tau)
    token_loss = weighted_policy_gradient(inputs, 1 / (1 + tau))
    return token_loss, ratio_sums(inputs.logprobs, inputs.old_logprobs, inputs.mask)
