"""Checkpoints of a run: what its trainer and critic go on from, and the model for everybody else."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from rlcore.cluster.trainer import CRITIC, TRAINER, CriticGroup, Role, TrainerGroup
from rlcore.reports import CheckpointReport, RunState
from rlcore.store import RunStore
from rlcore.trainer.checkpoint import publish, published

STATE = "state.json"
"""File of a checkpoint that holds the run's state, where there is one."""


def save_checkpoint(
    trainer: TrainerGroup,
    critic: CriticGroup | None,
    state: RunState | None,
    store: RunStore,
    policy_version: int,
    keep: int,
) -> CheckpointReport:
    """Publish checkpoints/{policy_version:06d} with its MANIFEST, then delete all but the `keep` newest.

    The random states are in Megatron's part of it; the place in the data follows from the version.

    Raises:
        StoreError: the run is not on a file system.
        CheckpointFailed: it could not be written. The checkpoints before are as they were.
    """
    started = time.perf_counter()
    final = store.directory / "checkpoints" / f"{policy_version:06d}"
    # One name for all attempts: what one that was killed left there, the next removes.
    staging = final.with_name(".saving")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    trainer.save_checkpoint(str(state_directory(staging, TRAINER)))
    if critic is not None:
        critic.save_checkpoint(str(state_directory(staging, CRITIC)))
    if state is not None:
        (staging / STATE).write_text(state.model_dump_json(indent=1))
    trainer.export_huggingface(str(staging / "huggingface"))
    publish(staging, final)
    for old in published(final.parent)[:-keep]:
        shutil.rmtree(old)
    return CheckpointReport(
        policy_version=policy_version,
        path=f"checkpoints/{final.name}",
        bytes=sum(path.stat().st_size for path in final.rglob("*") if path.is_file()),
        seconds=time.perf_counter() - started,
    )


def state_directory(checkpoint: Path, role: Role[Any]) -> Path:
    """Where a checkpoint holds Megatron's state of a role's ranks."""
    return checkpoint / "megatron" / role.name
