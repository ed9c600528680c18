"""The plain policy gradient."""

from __future__ import annotations

from torch import Tensor

from rlcore.algorithms.inputs import LossInputs
from rlcore.algorithms.losses.registry import loss
from rlcore.algorithms.losses.surrogate import weighted_policy_gradient
from rlcore.algorithms.metrics import ratio_sums


@loss("reinforce", source="Williams, 1992, Machine Learning 8, theorem 1")
def reinforce_loss(inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
    """Raise the log-probability of each token in proportion to its advantage.

        −A·log π

    Its gradient is the policy gradient of samples drawn from π: Williams, 1992, "Simple statistical
    gradient-following algorithms for connectionist reinforcement learning", theorem 1. Nothing corrects for samples
    of another policy; `old_logprobs` enters the metrics only (`ratio_sums`).
    """
    return weighted_policy_gradient(inputs, 1.0), ratio_sums(inputs.logprobs, inputs.old_logprobs, inputs.mask)
