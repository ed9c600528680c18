"""What of a run is not needed to go on with it, and the record of what was deleted therefore."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pydantic import BaseModel, ConfigDict, ValidationError

from rlcore.batches import SCHEMAS
from rlcore.reports import RunState
from rlcore.store import BatchRef, LedgerEntry, RunStore, StoreError

PRUNED_FILE = "pruned.jsonl"
"""One line per pruning, written before anything is deleted."""


class Pruning(BaseModel):
    """What one pruning set out to delete."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pruned_at: float
    """Unix time, seconds."""
    outputs: dict[str, str]
    """sha256 of each stage output, by path relative to the run directory."""
    checkpoints: list[int]


def was_pruned(store: RunStore, output: BatchRef) -> bool:
    """Whether a pruning set out to delete that output.

    Raises:
        StoreError: the record of a pruning cannot be read.
    """
    lines = store.read_bytes(PRUNED_FILE).split(b"\n")[:-1] if store.exists(PRUNED_FILE) else []
    for number, line in enumerate(lines, start=1):
        try:
            pruning = Pruning.model_validate_json(line)
        except ValidationError as error:
            raise StoreError(f"{store.url}/{PRUNED_FILE}:{number} is no record of a pruning: {error}") from None
        if pruning.outputs.get(output.path) == output.sha256:
            return True
    return False


def newest_entries(entries: Iterable[LedgerEntry]) -> dict[tuple[int, str], LedgerEntry]:
    """The entry that counts for each (iteration, stage): the last one of it in the ledger."""
    return {(entry.iteration, entry.stage): entry for entry in entries}


def dispensable(
    entries: Iterable[LedgerEntry], logged: Collection[int], newest_good: int, kept: Collection[int]
) -> list[LedgerEntry]:
    """The outputs without which the run goes on as it would with them.

    A restored trainer starts from the newest good checkpoint and is given the train batches after it, so batches up
    to there are not asked for again. What stays of those iterations:

    - the reports of the stages, a few hundred bytes each;
    - all of the newest iteration, which may be retried, and the run's state after the one before it;
    - all of an iteration that has no line in metrics.jsonl: the line is made from the batches;
    - the evaluation and the run's state of an iteration whose checkpoint stays;
    - the first and the last evaluation, which report.html compares.

    Args:
        logged: iterations that are in metrics.jsonl.
        newest_good: version of the newest checkpoint whose files are what was saved; 0 without one.
        kept: versions of the checkpoints that stay.

    Returns:
        In the order of the ledger.
    """
    counting = newest_entries(entries)
    if not counting:
        return []
    newest = max(iteration for iteration, _ in counting)
    evaluated = [iteration for iteration, stage in counting if stage == "evaluate"]
    evaluations = {*kept, *((min(evaluated), max(evaluated)) if evaluated else ())}
    states = {*kept, newest - 1}

    def is_dispensable(entry: LedgerEntry) -> bool:
        if entry.iteration > newest_good or entry.iteration >= newest or entry.iteration not in logged:
            return False
        if entry.stage == "evaluate":
            return entry.iteration not in evaluations
        if entry.output.schema_name == RunState.__name__:
            return entry.iteration not in states
        return entry.output.schema_name in SCHEMAS

    return [entry for entry in counting.values() if is_dispensable(entry)]
