"""One iteration of one run: what every stage is given."""

from __future__ import annotations

from dataclasses import dataclass

from rlcore.config import Config
from rlcore.plan import Plan, plan_iteration
from rlcore.store import RunStore


@dataclass(frozen=True)
class Iteration:
    """Iteration `number` of a run; the first is 1. Number 0 stands for the untrained policy's evaluation."""

    config: Config
    store: RunStore
    number: int

    @property
    def plan(self) -> Plan:
        return plan_iteration(self.config, self.number)

    @property
    def rollout_version(self) -> int:
        """Version of the policy that this iteration samples from."""
        return self.number - 1
