"""Statistics of the rewards of a group."""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-6
"""Added to a standard deviation before dividing by it."""


class ScoredGroups:
    """The rewards of each row's group, over the responses that have one.

    Args:
        rewards: (N,) float; NaN marks a response without a reward.
        groups: (N,) int64, any numbers.

    Every result is (N,): what holds for the group of each row.
    """

    def __init__(self, rewards: Tensor, groups: Tensor) -> None:
        unique, self._index = groups.unique(return_inverse=True)
        self._number = len(unique)
        self.scored = ~rewards.isnan()
        self.scores = torch.where(self.scored, rewards, 0.0)
        self.count = self.sum(torch.ones_like(self.scores))
        self.mean = self.sum(self.scores) / self.count.clamp(min=1)
        self.highest = self._extreme(self.scores, "amax", -torch.inf)
        self.lowest = self._extreme(self.scores, "amin", torch.inf)
        self.centred = self.minus(self.mean)

    @property
    def std(self) -> Tensor:
        """Unbiased; 0 in a group of one."""
        return (self.sum(self.centred**2) / (self.count - 1).clamp(min=1)).sqrt()

    def minus(self, baseline: Tensor) -> Tensor:
        """Reward − baseline; 0 for a response without a reward and in a group whose rewards are all equal."""
        # Equal rewards are told by their extremes: the rounding of their mean would be an advantage.
        return torch.where(self.scored & (self.highest > self.lowest), self.scores - baseline, 0.0)

    def sum(self, values: Tensor) -> Tensor:
        """Sum of (N,) values over the scored responses of a group."""
        members = torch.where(self.scored, values, 0.0)
        return members.new_zeros(self._number).index_add(0, self._index, members)[self._index]

    def _extreme(self, values: Tensor, reduce: str, neutral: float) -> Tensor:
        members = torch.where(self.scored, values, neutral)
        extremes = members.new_full((self._number,), neutral)
        return extremes.scatter_reduce(0, self._index, members, reduce)[self._index]
