"""What the stages of an iteration left on disk."""

from __future__ import annotations

from typing import TypeVar

import polars as pl

from rlcore.rollout.schedule import Schedule, read_schedule
from rlcore.store import Report, RunStore

R = TypeVar("R", bound=Report)


class IterationOutputs:
    """The outputs that the ledger names for one iteration. A batch is read and checked once, when first asked for."""

    def __init__(self, store: RunStore, iteration: int) -> None:
        self.iteration = iteration
        self.entries = {entry.stage: entry for entry in store.ledger(iteration)}
        """The newest entry of each finished stage."""
        self._store = store
        self._batches: dict[str, pl.DataFrame] = {}

    @property
    def schedule(self) -> Schedule | None:
        """What the scheduler of rollouts did for the iteration; None where nothing says."""
        return read_schedule(self._store, self.iteration)

    def batch(self, stage: str) -> pl.DataFrame:
        """
        Raises:
            KeyError: the stage is not finished.
            StoreError, BatchError: its output is missing or damaged.
        """
        if stage not in self._batches:
            self._batches[stage] = self._store.read_batch(self.entries[stage].output)
        return self._batches[stage]

    def is_intact(self, stage: str) -> bool:
        """
        Raises:
            KeyError: the stage is not finished.
        """
        return self._store.is_intact(self.entries[stage].output)

    def report(self, stage: str, kind: type[R]) -> R:
        """
        Raises:
            KeyError: the stage is not finished.
            StoreError: its output is missing or damaged.
        """
        return self._store.read_report(self.entries[stage].output, kind)
