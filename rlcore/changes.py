"""What a changed configuration would alter of what a run has done."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from rlcore.config import Config
from rlcore.iteration import span
from rlcore.plan import INPUTS, READS, UPDATED, also_reads
from rlcore.store import LedgerEntry

MODELS = ("model", "critic.path")
"""The fields that say which weights a checkpoint holds, in which precision."""


@dataclass(frozen=True, slots=True)
class Change:
    """A field of the configuration, dotted, that got another value."""

    field: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.field}: {self.before!r} → {self.now!r}"

    def is_in(self, fields: Collection[str]) -> bool:
        """Whether it is one of these fields, or a key of one."""
        return any(self.field == field or self.field.startswith(f"{field}.") for field in fields)


def changes(before: Config, now: Config) -> list[Change]:
    """By field."""
    old, new = _flat(before.model_dump(mode="json")), _flat(now.model_dump(mode="json"))
    every = (Change(field, old.get(field), new.get(field)) for field in sorted(old.keys() | new.keys()))
    return [change for change in every if change.before != change.now]


def standing(entries: Collection[LedgerEntry], under_way: int, inherited: int = 0) -> dict[str, list[int]]:
    """What must stay as it is: for each stage, the iterations whose output is built on.

    That is all of a finished iteration, and up to its update one that has been applied. The evaluation before
    training stands with the first update.

    Args:
        under_way: the iteration that the run goes on with.
        inherited: iterations at the start that a fork has from another run, under that run's settings.
    """
    done = {(entry.iteration, entry.stage) for entry in entries if not inherited or entry.iteration > inherited}
    updated = (under_way, "update") in done
    newest = under_way if updated else under_way - 1
    return {
        stage: sorted(
            iteration
            for iteration, name in done
            if name == stage
            and max(iteration, 1) <= newest
            and (iteration < under_way or stage == "update" or stage not in UPDATED)
        )
        for stage in INPUTS
    }


def altered(change: Change, stands: dict[str, list[int]], before: Config) -> str | None:
    """The first stage of those that stand, and its iterations, whose output the change would make another's."""
    for stage, iterations in stands.items():
        if iterations and change.is_in((*READS[stage], *also_reads(stage, before))):
            return f"{stage} of iteration{'s' if len(iterations) > 1 else ''} {span(iterations)}"
    return None


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
