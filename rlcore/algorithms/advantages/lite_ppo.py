"""Lite PPO's advantage."""

from __future__ import annotations

import torch
from torch import Tensor

from rlcore.algorithms.advantages.groups import EPSILON, ScoredGroups
from rlcore.algorithms.advantages.registry import estimator


@estimator("lite_ppo", source="Liu et al. (Tricks or Traps?), arXiv 2508.08221", tokens="returns")
def lite_ppo_advantages(rewards: Tensor, groups: Tensor) -> Tensor:
    """The reward above the mean of its group, in standard deviations of the whole batch.

        A_i = (R_i − mean_g) / (std_batch + 1e-6)

    Liu et al., "Tricks or traps? A deep dive into RL for LLM reasoning", arXiv 2508.08221 (Lite PPO). The
    standard deviation is that of the rewards, unbiased. Its other half is the aggregation token-mean.
    """
    batch = ScoredGroups(rewards, torch.zeros_like(groups))
    return ScoredGroups(rewards, groups).centred / (batch.std + EPSILON)
