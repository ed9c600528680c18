"""The updates of a run as they were recorded, to be computed again."""

from __future__ import annotations

from dataclasses import dataclass

from rlcore.lineage import read_fork
from rlcore.reports import SyncReport, UpdateReport
from rlcore.restoration import Restoration, plan_restoration, train_batch
from rlcore.retention import newest_entries
from rlcore.store import BatchRef, RunStore, StoreError


@dataclass(frozen=True, slots=True)
class RecordedUpdate:
    """One update, and what came of it."""

    iteration: int
    batch: BatchRef
    report: UpdateReport
    weights_sha256: str | None
    """Of the weights that were synced after it; None where it was not followed by a sync yet."""


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What has to be computed, and what to compare it with."""

    start: Restoration
    """How the trainer comes to the version before the first of the updates."""
    updates: list[RecordedUpdate]


def plan_replay(store: RunStore, first: int, last: int) -> ReplayPlan:
    """What a replay of updates `first` to `last` takes. Reads a run, which may be under way, and needs no engine.

    Raises:
        StoreError: one of them is not in the ledger, or is of the run that this one was forked from, or a batch or
            report is missing or damaged.
        CheckpointDamaged: there are checkpoints before `first`, and none is good.
    """
    entries = newest_entries(store.ledger())
    recorded = sorted(iteration for iteration, stage in entries if stage == "update")
    if not recorded:
        raise StoreError(f"{store.url}/ledger.jsonl has no update yet: there is none to replay")
    if not recorded[0] <= first <= last <= recorded[-1]:
        raise StoreError(
            f"updates {first} to {last} cannot be replayed: the ledger of {store.url} has those from {recorded[0]} "
            f"to {recorded[-1]}"
        )
    fork = read_fork(store)
    if fork is not None and first <= fork.iteration:
        raise StoreError(f"updates up to {fork.iteration} of {store.url} are of {fork.url}: replay them there")
    updates = []
    for iteration in range(first, last + 1):
        batch = train_batch(store, iteration)
        report = store.read_report(entries[iteration, "update"].output, UpdateReport)
        synced = entries.get((iteration, "sync"))
        digest = store.read_report(synced.output, SyncReport).weights_sha256 if synced else None
        updates.append(RecordedUpdate(iteration, batch, report, digest))
    return ReplayPlan(plan_restoration(store, held=0, wanted=first - 1), updates)
