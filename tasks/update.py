"""update: the optimizer steps of an iteration, each applied once."""

from __future__ import annotations

from rlcore.cluster.policy import critic_for_update, trainer_for_update
from rlcore.iteration import Iteration
from rlcore.plan import READS
from rlcore.reports import UpdateReport
from rlcore.store import BatchRef
from tasks.stage import stage


@stage(reads=READS["update"], writes=UpdateReport, to="update")
def update(iteration: Iteration, batch: BatchRef) -> UpdateReport:
    """Train on the batch, the critic before the policy. Both know it by its digest and do not step on it twice."""
    config, store, number = iteration.config, iteration.store, iteration.number
    rows = store.read_batch(batch)
    fitted = None
    if config.algorithm.uses_critic:
        fitted = critic_for_update(config, store, number).update(number, batch.sha256, rows)
    updated = trainer_for_update(config, store, number).update(number, batch.sha256, rows)
    return updated.model_copy(update={"critic": fitted})
