"""What a batch of rollouts is, and how far rollouts may run ahead of the trainer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


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
