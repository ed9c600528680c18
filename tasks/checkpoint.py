"""checkpoint: everything that a trainer needs to go on from here, and the model for everybody else."""

from __future__ import annotations

from rlcore.cluster.checkpoints import delete_superseded, save_checkpoint
from rlcore.cluster.policy import critic_at, trainer_at
from rlcore.cluster.trainer import lend_memory
from rlcore.iteration import Iteration
from rlcore.plan import READS
from rlcore.reports import CheckpointReport, RunState, SyncReport
from tasks.stage import stage


@stage(reads=READS["checkpoint"], writes=CheckpointReport, to="checkpoint")
def checkpoint(iteration: Iteration, synced: SyncReport, state: RunState | None = None) -> CheckpointReport:
    """Publish checkpoints/{iteration:06d}: Megatron's state and the run's, the Hugging Face directory, a MANIFEST."""
    config, store, version = iteration.config, iteration.store, synced.policy_version
    trainer = trainer_at(config, store, version)
    critic = critic_at(config, store, version) if config.algorithm.uses_critic else None
    saved = save_checkpoint(trainer, critic, state, store, version)
    lend_memory(config, trainer, critic)
    delete_superseded(store, config.save_total_limit, config.save_best)
    return saved
