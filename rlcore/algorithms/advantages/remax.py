"""ReMax's advantage."""

from __future__ import annotations

from torch import Tensor

from rlcore.algorithms.advantages.registry import estimator


@estimator("remax", source="Li et al. (ReMax), arXiv 2310.10505", tokens="returns")
def remax_advantages(rewards: Tensor, groups: Tensor, *, greedy_rewards: Tensor) -> Tensor:
    """The reward above that of the greedy response to the same prompt.

        A_i = R_i − R(greedy response)

    Li et al., "ReMax", arXiv 2310.10505.

    Args:
        greedy_rewards: (N,) float, the greedy reward of each row's prompt. NaN, no greedy reward: 0.
    """
    return (rewards - greedy_rewards.to(rewards.dtype)).nan_to_num(nan=0.0)
