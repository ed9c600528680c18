"""REINFORCE without a baseline."""

from __future__ import annotations

from torch import Tensor

from rlcore.algorithms.advantages.registry import estimator


@estimator(
    "reinforce",
    source="Williams, 1992, Simple statistical gradient-following algorithms for connectionist reinforcement learning",
    tokens="returns",
)
def reinforce_advantages(rewards: Tensor, groups: Tensor) -> Tensor:
    """The reward itself: a token's advantage is the discounted return from it on.

        A_i = R_i

    Williams, 1992, "Simple statistical gradient-following algorithms for connectionist reinforcement learning".
    """
    return rewards.nan_to_num(nan=0.0)
