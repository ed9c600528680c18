"""One iteration of one run: what every stage is given."""

from __future__ import annotations

from dataclasses import dataclass

from rlcore.config import Config
from rlcore.lineage import inherited_iterations
from rlcore.plan import Plan, plan_iteration
from rlcore.store import BatchRef, RunStore, StoreError


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
    def previous_state(self) -> BatchRef | None:
        """The run's state after the iteration before; None in the first, and where no iteration needs it.

        A fork starts without one where the run it is of kept none.

        Raises:
            StoreError: it is not in the ledger.
        """
        if "statistics" not in self.plan or self.number == 1:
            return None
        entry = self.store.find(self.number - 1, "statistics")
        if entry is None:
            if self.number == inherited_iterations(self.store) + 1:
                return None
            raise StoreError(f"{self.store.url}: the statistics of iteration {self.number - 1} are not in the ledger")
        return entry.output

    @property
    def rollout_version(self) -> int:
        """Version of the policy that this iteration samples from."""
        return self.number - 1


def span(iterations: list[int]) -> str:
    """`3`, or `1–4`, of ascending numbers."""
    first, last = iterations[0], iterations[-1]
    return str(first) if first == last else f"{first}–{last}"
