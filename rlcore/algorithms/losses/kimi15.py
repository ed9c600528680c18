"""The policy optimisation of Kimi k1.5."""

from __future__ import annotations

from torch import Tensor

from rlcore.algorithms.inputs import LossInputs
from rlcore.algorithms.losses.registry import loss
from rlcore.algorithms.losses.surrogate import check_not_negative, weighted_policy_gradient
from rlcore.algorithms.metrics import ratio_sums
from rlcore.algorithms.ratio import log_difference


@loss("kimi15", source="Kimi Team, arXiv 2501.12599, equation 3")
def kimi15_loss(inputs: LossInputs, *, tau: float = 0.1) -> tuple[Tensor, dict[str, Tensor]]:
    """The policy gradient with a pull back to the old policy, one step of online mirror descent.

        −A·log π + (τ/2)·(log π − log π_old)²

    Kimi Team, arXiv 2501.12599, equation 3, whose square is of the log-ratio of the whole response; here, as in
    ROLL, it is of each token's. Nothing is clamped, since nothing is exponentiated: the pull grows with the
    distance.

    Options:
        tau: τ ≥ 0, the strength of the pull.

    Metrics: those of `ratio_sums`.
    """
    check_not_negative(tau=tau)
    pull = log_difference(inputs.logprobs, inputs.old_logprobs, inputs.mask).square()
    token_loss = weighted_policy_gradient(inputs, 1.0) + tau / 2 * pull
    return token_loss, ratio_sums(inputs.logprobs, inputs.old_logprobs, inputs.mask)
