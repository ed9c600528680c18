"""Group relative policy optimisation's advantage."""

from __future__ import annotations

from torch import Tensor

from rlcore.algorithms.advantages.groups import EPSILON, ScoredGroups
from rlcore.algorithms.advantages.registry import estimator


@estimator("grpo", source="Shao et al. (DeepSeekMath), arXiv 2402.03300, section 4.1.2", tokens="returns")
def grpo_advantages(rewards: Tensor, groups: Tensor) -> Tensor:
    """The reward above the mean of its group, in standard deviations of the group.

        A_i = (R_i − mean_g) / (std_g + 1e-6)

    Shao et al. (DeepSeekMath), arXiv 2402.03300, section 4.1.2; the standard deviation is unbiased. 0 in a group
    of one and in a group whose rewards are all equal.
    """
    group = ScoredGroups(rewards, groups)
    return group.centred / (group.std + EPSILON)
