"""update: the optimizer steps of an iteration, each applied once."""

from __future__ import annotations

from rlcore.cluster.policy import trainer_for_update
from rlcore.iteration import Iteration
from rlcore.reports import UpdateReport
from rlcore.store import BatchRef
from tasks.stage import stage


@stage(
    reads=("model", "algorithm", "trainer", "rollout.temperature", "rollout.response_length"),
    writes=UpdateReport,
    to="update",
)
def update(iteration: Iteration, batch: BatchRef) -> UpdateReport:
    """Train on the batch. The trainer knows it by its digest and does not step on it twice."""
    trainer = trainer_for_update(iteration.config, iteration.store, iteration.number)
    return trainer.update(iteration.number, batch.sha256, iteration.store.read_batch(batch))
