"""What a batch of rollouts is, and how far rollouts may run ahead of the trainer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rlcore.config import Config

ALL = "all"
"""The lane of all prompts, where domains have no quotas."""


@dataclass(frozen=True, slots=True)
class Lane:
    """Prompts that are counted together: those of a domain, where domains have quotas; else all."""

    groups: int
    """Of a batch."""
    ahead: int = 0
    """Prompts that may be live while no batch is collected: ⌊α·groups⌋."""
    extra: int = 0
    """Prompts that may be live beyond what the batch needs, while one is collected."""
    reserve: int = 0
    """Prompts that wait to replace rejected ones; when more are rejected for a batch, it is given up."""

    @property
    def population(self) -> int:
        """Prompts that are queued or live when a batch begins to be collected."""
        return self.groups + self.ahead + self.extra + self.reserve


@dataclass(frozen=True, slots=True)
class Rules:
    """What a batch is."""

    lanes: Mapping[str, Lane]
    async_ratio: float = 0.0
    restart_interrupted: bool = False
    """A response that is under way when the weights change is thrown away; else it goes on under the new ones."""

    @property
    def staleness_bound(self) -> int:
        """⌈α⌉: so many versions may lie between the start of a response and the policy that trains on it."""
        return math.ceil(self.async_ratio)

    @property
    def patience(self) -> int:
        """So many batches may pass a prompt over; the next waits for it, however long its responses take."""
        return 8 * (self.staleness_bound + 1)


def rules_of(config: Config) -> Rules:
    """The scheduler's rules."""
    rollout = config.rollout
    if rollout.domain_quotas:
        shares = {domain: share for domain, share in config.data.domain_interleave_probs.items() if share > 0}
    else:
        shares = {ALL: 1.0}
    groups = apportion(rollout.rollout_batch_size, shares)
    extra = apportion(rollout.extra_prompts, shares)
    reserve = rollout.filter.max_rejected_prompts if rollout.filter else 0
    lanes = {
        name: Lane(groups[name], ahead=int(rollout.async_ratio * groups[name]), extra=extra[name], reserve=reserve)
        for name in shares
    }
    return Rules(lanes, rollout.async_ratio, restart_interrupted=rollout.interrupted == "restart")


def apportion(total: int, shares: dict[str, float]) -> dict[str, int]:
    """Whole numbers that sum to the total, as near to the shares as can be (largest remainders)."""
    exact = {name: total * share for name, share in shares.items()}
    whole = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (whole[name] - exact[name], name))
    for name in by_remainder[: total - sum(whole.values())]:
        whole[name] += 1
    return whole
