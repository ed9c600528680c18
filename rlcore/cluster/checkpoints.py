"""Checkpoints of a run: what its trainer and critic go on from, and the model for everybody else."""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from rlcore.cluster.trainer import CRITIC, TRAINER, CriticGroup, Role, TrainerGroup
from rlcore.reports import CheckpointReport, RunState
from rlcore.store import RunStore, StoreError
from rlcore.tracking.history import read_metrics
from rlcore.trainer.checkpoint import HUGGINGFACE, delete_directory, publish, published

STATE = "state.json"
"""File of a checkpoint that holds the run's state, where there is one."""


def save_checkpoint(
    trainer: TrainerGroup,
    critic: CriticGroup | None,
    state: RunState | None,
    store: RunStore,
    policy_version: int,
) -> CheckpointReport:
    """Publish checkpoints/{policy_version:06d} with its MANIFEST.

    The random states are in Megatron's part of it; the place in the data follows from the version.

    Raises:
        StoreError: the run is not on a file system, or no space is left, or the directory cannot be written.
        CheckpointFailed: it could not be written. The checkpoints before are as they were.
    """
    started = time.perf_counter()
    final = store.directory / "checkpoints" / f"{policy_version:06d}"
    # One name for all attempts: what one that was killed left there, the next removes.
    staging = final.with_name(".saving")
    if staging.parent.is_symlink() and not staging.parent.exists():
        raise StoreError(
            f"{staging.parent} is a link to {staging.parent.readlink()}, which is not there: mount or make it"
        )
    with store.writing(f"checkpoints/{final.name}"):
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        trainer.save_checkpoint(str(state_directory(staging, TRAINER)))
        if critic is not None:
            critic.save_checkpoint(str(state_directory(staging, CRITIC)))
        if state is not None:
            (staging / STATE).write_text(state.model_dump_json(indent=1))
        trainer.export_huggingface(str(staging / HUGGINGFACE))
        publish(staging, final)
    return CheckpointReport(
        policy_version=policy_version,
        path=f"checkpoints/{final.name}",
        bytes=sum(path.stat().st_size for path in final.rglob("*") if path.is_file()),
        seconds=time.perf_counter() - started,
    )


def delete_superseded(store: RunStore, keep: int, best_by: str | None) -> None:
    """Delete the run's checkpoints but the `keep` newest and the one with the highest `best_by` in metrics.jsonl.

    The newest iteration's evaluation may still run while its checkpoint is saved, so its metrics are not known yet.
    Its checkpoint is among the newest, and the best so far stays beside it: which of the two is better is decided
    at the next save. So no checkpoint goes that was, or could still turn out to be, the best.
    """
    checkpoints = {int(path.name): path for path in published(store.directory / "checkpoints")}
    scores = {int(row["iteration"]): row[best_by] for row in read_metrics(store.directory) if best_by in row}
    for version in superseded(checkpoints, keep, scores):
        delete_directory(checkpoints[version])


def superseded(versions: Collection[int], keep: int, scores: Mapping[int, float]) -> list[int]:
    """The versions that are not among the `keep` newest and do not have the best score of all; ascending.

    Args:
        keep: at least 1.
        scores: by version, higher is better; of versions with the same score, the newest is the best.
    """
    best = max((version for version in versions if version in scores), key=lambda v: (scores[v], v), default=None)
    return [version for version in sorted(versions)[:-keep] if version != best]


def state_directory(checkpoint: Path, role: Role[Any]) -> Path:
    """Where a checkpoint holds Megatron's state of a role's ranks."""
    return checkpoint / "megatron" / role.name
