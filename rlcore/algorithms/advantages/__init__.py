"""Advantages of whole responses from the rewards of their group, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from rlcore.algorithms.advantages.grpo import grpo_advantages

GROUP_ADVANTAGES: dict[str, Callable[..., Tensor]] = {"grpo": grpo_advantages}


def group_advantages(name: str, rewards: Tensor, groups: Tensor, **options: Any) -> Tensor:
    """One advantage per response.

    Args:
        name: of the estimator.
        rewards: (N,) float. NaN marks a response without a reward: it enters no baseline, its advantage is 0.
        groups: (N,) int64. Responses with the same number answer the same prompt; any order, any numbers.

    Returns:
        (N,), of the dtype of `rewards`, finite.

    Raises:
        ValueError: no estimator of that name, or `rewards` and `groups` differ in shape.
        TypeError: the estimator has no such option.
    """
    if name not in GROUP_ADVANTAGES:
        raise ValueError(f"no group advantage {name!r}; there are {', '.join(GROUP_ADVANTAGES)}")
    if rewards.ndim != 1 or rewards.shape != groups.shape:
        raise ValueError(f"rewards {tuple(rewards.shape)} and groups {tuple(groups.shape)} must both be (N,)")
    return GROUP_ADVANTAGES[name](rewards, groups, **options)
