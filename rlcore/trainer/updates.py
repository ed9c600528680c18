"""Exactly once: which updates a model has taken, and which it takes next."""

from __future__ import annotations

from typing import Any


class UpdateRefused(RuntimeError):
    """An update that is not the next one, or that was applied with another batch."""


class AppliedUpdates:
    """The updates applied so far, in order from 1, each with the digest of its batch and with its report."""

    def __init__(self) -> None:
        self._updates: dict[int, dict[str, Any]] = {}
        self._half_applied: int | None = None

    @property
    def version(self) -> int | None:
        """Number of updates applied. None where one broke off after it had changed weights: they are no version's."""
        return None if self._half_applied is not None else len(self._updates)

    def report(self, iteration: int, digest: str) -> dict[str, Any] | None:
        """The report of an update that was applied; None if it is the next one.

        Raises:
            UpdateRefused: out of order, applied with another digest, or an update broke off half applied.
        """
        applied = self._updates.get(iteration)
        if applied is not None and applied["digest"] != digest:
            raise UpdateRefused(
                f"update {iteration} was applied with batch {applied['digest']}, not {digest}: "
                "restore an older checkpoint to train on another batch"
            )
        if applied is None and iteration != len(self._updates) + 1:
            raise UpdateRefused(f"update {iteration} is out of order: the next one is {len(self._updates) + 1}")
        if self._half_applied is not None:
            raise UpdateRefused(
                f"update {self._half_applied} broke off after it had changed weights: restore a checkpoint"
            )
        return applied["report"] if applied else None

    def begin(self, iteration: int) -> None:
        """From here on the update changes weights."""
        self._half_applied = iteration

    def record(self, iteration: int, digest: str, report: dict[str, Any]) -> None:
        """The update is applied, whole."""
        self._updates[iteration] = {"digest": digest, "report": report}
        self._half_applied = None

    def dump(self) -> dict[str, Any]:
        """For a checkpoint, as JSON."""
        updates = [{"iteration": iteration, **update} for iteration, update in self._updates.items()]
        return {"version": self.version, "updates": updates}

    @classmethod
    def load(cls, state: dict[str, Any]) -> AppliedUpdates:
        """What `dump` gave."""
        applied = cls()
        for update in state["updates"]:
            applied.record(update["iteration"], update["digest"], update["report"])
        return applied
