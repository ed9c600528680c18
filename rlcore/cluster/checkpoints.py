"""Checkpoints of a run: what its trainer goes on from, and the model for everybody else."""

from __future__ import annotations

import shutil
import time

from rlcore.cluster.trainer import TrainerGroup
from rlcore.reports import CheckpointReport
from rlcore.store import RunStore
from rlcore.trainer.checkpoint import publish, published


def save_checkpoint(trainer: TrainerGroup, store: RunStore, policy_version: int, keep: int) -> CheckpointReport:
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
    trainer.save_checkpoint(str(staging / "megatron"))
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
