"""The advantage of maximum likelihood reinforcement learning."""

from __future__ import annotations

import torch
from torch import Tensor

from rlcore.algorithms.advantages.groups import ScoredGroups
from rlcore.algorithms.advantages.registry import estimator


@estimator("max_rl", source="Tajwar et al. (MaxRL), arXiv 2602.02710", tokens="returns")
def max_rl_advantages(rewards: Tensor, groups: Tensor) -> Tensor:
    """The reward above the mean of its group, relative to that mean: rare success weighs most.

        A_i = (R_i − mean_g) / mean_g, and 0 where mean_g ≤ 0

    Tajwar et al., arXiv 2602.02710: with rewards of 0 and 1 it estimates the gradient of log(pass rate), not
    of the pass rate. For rewards that are not negative.
    """
    group = ScoredGroups(rewards, groups)
    return torch.where(group.mean > 0, group.centred / torch.where(group.mean > 0, group.mean, 1.0), 0.0)
