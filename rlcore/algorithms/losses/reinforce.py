"""The plain policy gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from rlcore.algorithms.inputs import LossInputs
from rlcore.algorithms.metrics import ratio_sums


def reinforce_loss(inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
    """−A·log π: its gradient is the policy gradient of samples drawn from π.

    Williams, 1992, "Simple statistical gradient-following algorithms for connectionist reinforcement
    learning", theorem 1. `old_logprobs` enters the metrics only (`ratio_sums`).
    """
    trains = inputs.mask.bool()
    loss = -torch.where(trains, inputs.advantages, 0.0) * torch.where(trains, inputs.logprobs, 0.0)
    return loss, ratio_sums(inputs.logprobs, inputs.old_logprobs, inputs.mask)
