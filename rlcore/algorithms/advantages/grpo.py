"""Group relative policy optimisation's advantage."""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-6


def grpo_advantages(rewards: Tensor, groups: Tensor) -> Tensor:
    """A_i = (R_i − mean_g) / (std_g + 1e-6), with the unbiased standard deviation of the group g of i.

    Shao et al. (DeepSeekMath), arXiv 2402.03300, section 4.1.2. 0 for a response without a reward (NaN), in a
    group of one, and in a group whose rewards are all equal.
    """
    scored = ~rewards.isnan()
    unique, index = groups.unique(return_inverse=True)
    members, scores = index[scored], rewards[scored]
    per_group = scores.new_zeros(len(unique))
    count = per_group.index_add(0, members, torch.ones_like(scores))
    mean = per_group.index_add(0, members, scores) / count.clamp(min=1)
    centred = scores - mean[members]
    std = (per_group.index_add(0, members, centred**2) / (count - 1).clamp(min=1)).sqrt()
    # Equal rewards are told by their extremes: the rounding of their mean would be a variance.
    highest = per_group.scatter_reduce(0, members, scores, "amax", include_self=False)
    lowest = per_group.scatter_reduce(0, members, scores, "amin", include_self=False)
    advantages = torch.zeros_like(rewards)
    advantages[scored] = torch.where((highest > lowest)[members], centred / (std[members] + EPSILON), 0.0)
    return advantages
