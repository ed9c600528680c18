"""Deleting what a run does not need to go on."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from rlcore.cluster.checkpoints import superseded
from rlcore.compose import load
from rlcore.iteration import span
from rlcore.leftovers import ABANDONED_AFTER, last_touched, leftovers, size_of
from rlcore.retention import PRUNED_FILE, Pruning, dispensable
from rlcore.store import RunStore
from rlcore.tracking.history import read_metrics
from rlcore.trainer.checkpoint import delete_directory, newest_good, published


@dataclass(frozen=True)
class PrunePlan:
    """What can be deleted. Paths are relative to the run directory."""

    outputs: dict[str, str]
    """sha256 recorded for each stage output."""
    checkpoints: list[int]
    leftovers: list[str]
    sizes: dict[str, int]
    """Bytes of each of all of them."""

    @property
    def bytes(self) -> int:
        return sum(self.sizes.values())

    def lines(self) -> list[str]:
        """How much of what would go, one line per kind."""
        lines = []
        if self.outputs:
            iterations = sorted({int(Path(path).parent.name) for path in self.outputs})
            size = megabytes(sum(self.sizes[path] for path in self.outputs))
            lines.append(f"iterations {span(iterations)}: {size} of batches in {len(self.outputs)} files")
        if self.checkpoints:
            size = megabytes(sum(self.sizes[_checkpoint(version)] for version in self.checkpoints))
            lines.append(f"checkpoints {', '.join(map(str, self.checkpoints))}: {size}")
        if self.leftovers:
            size = megabytes(sum(self.sizes[path] for path in self.leftovers))
            lines.append(f"interrupted writes: {size} in {len(self.leftovers)} files or directories")
        return lines


def plan_pruning(store: RunStore) -> PrunePlan:
    """What of a run is not needed to go on with it. Reads the checkpoints that stay, and changes nothing.

    The newest good checkpoint stays, and the best one (`save_best`).

    Raises:
        StoreError: the run is not on a file system, or a line of its ledger cannot be read.
        CheckpointDamaged: there are checkpoints, and none is good.
    """
    run, metrics = store.directory, read_metrics(store.directory)
    checkpoints = published(run / "checkpoints")
    good = newest_good(checkpoints)
    newest = int(good.name) if good else 0
    best_by = load(store.read_bytes("config.yaml").decode()).save_best
    scores = {int(row["iteration"]): row[best_by] for row in metrics if best_by in row}
    versions = [int(path.name) for path in checkpoints]
    # Those after the newest good one are damaged.
    gone = [*superseded([version for version in versions if version <= newest], 1, scores)]
    gone += [version for version in versions if version > newest]
    kept = set(versions) - set(gone)
    logged = {int(row["iteration"]) for row in metrics}
    outputs = {
        entry.output.path: entry.output.sha256
        for entry in dispensable(store.ledger(), logged, newest, kept)
        if (run / entry.output.path).is_file()
    }
    abandoned = [path for path in leftovers(store) if time.time() - last_touched(path) > ABANDONED_AFTER]
    remnants = [str(path.relative_to(run)) for path in abandoned]
    going = [*outputs, *map(_checkpoint, gone), *remnants]
    return PrunePlan(outputs, sorted(gone), remnants, {path: size_of(run / path) for path in going})


def prune(store: RunStore, plan: PrunePlan) -> None:
    """Delete what is planned. It is recorded first: what is missing afterwards was pruned, not lost.

    What is gone by then, as the run went on, is passed over.
    """
    if plan.outputs or plan.checkpoints:
        record = Pruning(pruned_at=time.time(), outputs=plan.outputs, checkpoints=plan.checkpoints)
        store.append_line(PRUNED_FILE, record.model_dump_json())
    run = store.directory
    for path in (run / name for name in (*plan.leftovers, *plan.outputs)):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for path in (run / _checkpoint(version) for version in plan.checkpoints):
        if path.is_dir():
            delete_directory(path)


def _checkpoint(version: int) -> str:
    return f"checkpoints/{version:06d}"


def megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
