"""Exactly once: which updates a model has taken, and which it takes next."""

from __future__ import annotations

from typing import Any

SKIPPED_IN_A_ROW = 3
"""So many optimizer steps in a row, over all updates, without a finite gradient are an error."""


class UpdateRefused(RuntimeError):
    """An update that is not the next one, or that was applied with another batch."""


class NonFiniteGradient(ArithmeticError):
    """The gradients of SKIPPED_IN_A_ROW optimizer steps in a row are not finite."""


class AppliedUpdates:
    """The updates applied so far, in order from 1, each with the digest of its batch and with its report.

    `start`, then a `step` or `skip` for each optimizer step, then `record`: one update.
    """

    def __init__(self) -> None:
        self._updates: dict[int, dict[str, Any]] = {}
        self._half_applied: int | None = None
        self._skipped_in_a_row = 0

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
                f"update {iteration} was applied with batch {applied['digest']}, not {digest}: retry with the "
                "settings of the batch that was applied; or, if the ledger has no such update, end the trainer (`rlvr "
                "down`), which is then restored as it was before; or `rlvr fork` the run from an earlier checkpoint"
            )
        if applied is None and iteration != len(self._updates) + 1:
            raise UpdateRefused(f"update {iteration} is out of order: the next one is {len(self._updates) + 1}")
        if self._half_applied is not None:
            raise UpdateRefused(
                f"update {self._half_applied} broke off after it had changed weights: restore a checkpoint"
            )
        return applied["report"] if applied else None

    def start(self) -> None:
        """An update is tried: what an attempt before it skipped does not count."""
        newest = self._updates.get(len(self._updates))
        self._skipped_in_a_row = newest["skipped_in_a_row"] if newest else 0

    def step(self, iteration: int) -> None:
        """From here on the update changes weights."""
        self._half_applied = iteration
        self._skipped_in_a_row = 0

    def skip(self, iteration: int, gradient_norm: float) -> None:
        """A step whose gradient is not finite is not taken.

        Raises:
            NonFiniteGradient: it is one too many in a row.
        """
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row == SKIPPED_IN_A_ROW:
            raise NonFiniteGradient(
                f"update {iteration}: the gradients of {SKIPPED_IN_A_ROW} optimizer steps in a row are not finite "
                f"(norm {gradient_norm}); none of them was taken. Look for what is not finite in the batches of this "
                "update and of the one before, or train anew with a lower learning rate or with model.dtype=float32"
            )

    def record(self, iteration: int, digest: str, report: dict[str, Any]) -> None:
        """The update is applied, whole."""
        self._updates[iteration] = {"digest": digest, "report": report, "skipped_in_a_row": self._skipped_in_a_row}
        self._half_applied = None

    def dump(self) -> dict[str, Any]:
        """For a checkpoint, as JSON."""
        updates = [{"iteration": iteration, **update} for iteration, update in self._updates.items()]
        return {"version": self.version, "updates": updates}

    @classmethod
    def load(cls, state: dict[str, Any]) -> AppliedUpdates:
        """What `dump` gave."""
        applied = cls()
        applied._updates = {update.pop("iteration"): update for update in map(dict, state["updates"])}
        return applied
