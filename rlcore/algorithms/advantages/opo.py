"""The advantage of on-policy RL with optimal reward baseline."""

from __future__ import annotations

from torch import Tensor

from rlcore.algorithms.advantages.groups import ScoredGroups
from rlcore.algorithms.advantages.registry import estimator


@estimator("opo", source="Hao et al. (OPO), arXiv 2505.23585", tokens="returns")
def opo_advantages(rewards: Tensor, groups: Tensor, *, lengths: Tensor) -> Tensor:
    """The reward above the length-weighted mean of its group: the baseline of least gradient variance.

        A_i = R_i − Σ_j l_j·R_j / Σ_j l_j

    Hao et al., arXiv 2505.23585: the optimal baseline where the squared norm of a response's gradient grows
    with its length l.

    Args:
        lengths: (N,) number of tokens of each response that the policy chose, the ones that its gradient is a sum
            over; a tool's output is not among them. 0 in a whole group: its advantages are 0.
    """
    group = ScoredGroups(rewards, groups)
    total = group.sum(lengths.to(rewards.dtype))
    baseline = group.sum(lengths * group.scores) / total.clamp(min=1)
    return group.minus(baseline) * (total > 0)
