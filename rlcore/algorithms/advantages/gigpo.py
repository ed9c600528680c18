"""Group-in-group policy optimisation's advantage: of episodes, and of steps taken from the same state."""

from __future__ import annotations

import torch
from torch import Tensor

from rlcore.algorithms.advantages.groups import EPSILON, ScoredGroups
from rlcore.algorithms.advantages.registry import estimator
from rlcore.algorithms.returns import discounted_returns


@estimator("gigpo", source="Feng et al. (GiGPO), arXiv 2505.10978, equations 3, 6, 7 and 8", tokens="returns")
def gigpo_advantages(
    rewards: Tensor,
    groups: Tensor,
    *,
    episodes: Tensor,
    steps: Tensor,
    step_rewards: Tensor,
    states: Tensor,
    episode_weight: float = 1.0,
    step_weight: float = 1.0,
    step_gamma: float = 0.95,
    divide_by_std: bool = True,
) -> Tensor:
    """An episode's advantage in its group plus a step's advantage among the steps taken from the same state.

        A_t = w_e·norm(R | episodes of the group) + w_s·norm(Σ_{k≥t} γ_s^(k−t)·r_k | steps from the same state)
        norm(x) = (x − mean) / F,  F = std + 1e-6, or 1

    Feng et al., arXiv 2505.10978, equations 3 (episodes), 6 (steps of one group that share a state), 7 (steps)
    and 8 (the sum). An episode counts once in the mean of its group, however many steps it has. A state that is
    visited once gives no step advantage.

    Args:
        rewards: (N,) the reward R of the row's episode, the same in all its rows. A row is one step.
        groups: (N,) int64, episodes that began alike.
        episodes: (N,) int64, the row's episode.
        steps: (N,) int64, the row's place in its episode; only the order counts.
        step_rewards: (N,) float, the reward r of the step alone.
        states: (N,) int64, equal where the step was taken from the same state; compared within a group.
        episode_weight, step_weight: w_e, w_s.
        step_gamma: γ_s, the discount of step rewards.
        divide_by_std: F is the unbiased standard deviation; otherwise 1.

    An episode with a NaN among its rewards or step rewards enters no mean and is 0 in all its steps.

    Raises:
        ValueError: an episode has two rows of one step, or different rewards or groups.
    """
    # An episode with a gap in its rewards has no return: it counts as one without a reward.
    incomplete = ScoredGroups(torch.where(rewards.isnan() | step_rewards.isnan(), 1.0, 0.0), episodes).highest > 0
    rewards = rewards.masked_fill(incomplete, torch.nan)
    first, returns = _first_rows_and_returns(step_rewards.to(rewards.dtype), episodes, steps, step_gamma)
    unique, episode = episodes.unique(return_inverse=True)
    differs = (groups != groups[first][episode]) | ((rewards != rewards[first][episode]) & ~incomplete)
    if differs.any():
        number = unique[episode[differs][0]].item()
        raise ValueError(f"gigpo: the rows of episode {number} differ in reward or group; an episode has one of each")

    def norm(scores: Tensor, groups: Tensor) -> Tensor:
        group = ScoredGroups(scores, groups)
        return group.centred / (group.std + EPSILON) if divide_by_std else group.centred

    of_episodes = norm(rewards[first], groups[first])[episode]
    same_state = torch.stack([groups, states]).unique(dim=1, return_inverse=True)[1]
    of_steps = norm(returns.masked_fill(incomplete, torch.nan), same_state)
    return episode_weight * of_episodes + step_weight * of_steps


def _first_rows_and_returns(rewards: Tensor, episodes: Tensor, steps: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """The row of each episode's first step (episodes ascending), and the discounted return of every row (N,)."""
    unique, episode = episodes.unique(return_inverse=True)
    order = steps.argsort(stable=True)
    order = order[episode[order].argsort(stable=True)]
    row = episode[order]
    lengths = row.bincount(minlength=len(unique))
    column = torch.arange(len(row), device=row.device) - (lengths.cumsum(0) - lengths)[row]
    twice = (row[1:] == row[:-1]) & (steps[order][1:] == steps[order][:-1])
    if twice.any():
        at = order[1:][twice][0]
        raise ValueError(f"gigpo: episode {episodes[at].item()} has two rows of step {steps[at].item()}")
    table = rewards.new_zeros(len(unique), int(lengths.max()) if len(unique) else 0)
    table[row, column] = rewards[order]
    taken = torch.zeros_like(table, dtype=torch.bool)
    taken[row, column] = True
    returns = torch.empty_like(rewards)
    returns[order] = discounted_returns(table, taken, gamma)[row, column]
    return order[column == 0], returns
