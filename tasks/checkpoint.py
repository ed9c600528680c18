"""checkpoint: everything that a trainer needs to go on from here, and the model for everybody else."""

from __future__ import annotations

from rlcore.cluster.checkpoints import save_checkpoint
from rlcore.cluster.policy import trainer_at
from rlcore.iteration import Iteration
from rlcore.reports import CheckpointReport, SyncReport
from tasks.stage import stage


@stage(reads=("model",), writes=CheckpointReport, to="checkpoint")
def checkpoint(iteration: Iteration, synced: SyncReport) -> CheckpointReport:
    """Publish checkpoints/{iteration:06d}: Megatron's state, the Hugging Face directory, and a MANIFEST of both."""
    trainer = trainer_at(iteration.config, iteration.store, synced.policy_version)
    return save_checkpoint(trainer, iteration.store, synced.policy_version, keep=iteration.config.save_total_limit)
