"""REINFORCE leave-one-out's advantage."""

from __future__ import annotations

from torch import Tensor

from rlcore.algorithms.advantages.groups import ScoredGroups
from rlcore.algorithms.advantages.registry import estimator


@estimator("rloo", source="Ahmadian et al. (RLOO), arXiv 2402.14740", tokens="returns")
def rloo_advantages(rewards: Tensor, groups: Tensor) -> Tensor:
    """The reward above the mean of the other responses of its group: a baseline that does not know the response.

        A_i = R_i − Σ_{j≠i} R_j / (n − 1)

    Ahmadian et al., "Back to basics", arXiv 2402.14740. 0 in a group of one.
    """
    group = ScoredGroups(rewards, groups)
    return group.minus((group.sum(group.scores) - group.scores) / (group.count - 1).clamp(min=1))
