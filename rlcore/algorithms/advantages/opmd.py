"""The advantage of online policy mirror descent."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from rlcore.algorithms.advantages.groups import ScoredGroups
from rlcore.algorithms.advantages.registry import estimator


@estimator("opmd", source="Pan et al. (Trinity-RFT), arXiv 2505.17826", tokens="returns")
def opmd_advantages(
    rewards: Tensor, groups: Tensor, *, baseline: Literal["mean", "log_mean_exp"] = "mean", tau: float = 1.0
) -> Tensor:
    """The reward above the mean of its group, or above its soft maximum at temperature tau.

        mean           A_i = R_i − mean_g
        log_mean_exp   A_i = R_i − τ·log(mean_g exp(R / τ))

    Pan et al., "Trinity-RFT", arXiv 2505.17826. The second baseline is the optimum's log-partition
    function, estimated on the group; it tends to the mean for large τ and to the maximum for small. 0 in a
    group of one.

    Raises:
        ValueError: no such baseline, or `tau` is not positive.
    """
    if tau <= 0:
        raise ValueError(f"opmd: tau is {tau}, it must be positive")
    group = ScoredGroups(rewards, groups)
    match baseline:
        case "mean":
            return group.centred
        case "log_mean_exp":
            # Relative to the largest reward, so that no exponential overflows.
            relative = ((group.scores - group.highest) / tau).exp()
            return group.minus(group.highest + tau * (group.sum(relative) / group.count.clamp(min=1)).log())
        case _:
            raise ValueError(f"opmd: no baseline {baseline!r}; there are mean, log_mean_exp")
