"""checkpoint: everything that a trainer needs to go on from here, and the model for everybody else."""

from __future__ import annotations

from rlcore.cluster.policy import save_checkpoint
from rlcore.iteration import Iteration
from rlcore.reports import CheckpointReport, SyncReport
from tasks.stage import stage


@stage(reads=("model",), writes=CheckpointReport, to="checkpoint")
def checkpoint(iteration: Iteration, synced: SyncReport) -> CheckpointReport:
    """Publish checkpoints/{iteration:06d} with its MANIFEST, and the Hugging Face directory inside it."""
    return save_checkpoint(iteration.config, iteration.store, synced.policy_version)
