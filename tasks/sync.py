"""sync: the trained weights handed to the engines, and the proof that they arrived."""

from __future__ import annotations

import polars as pl

from rlcore.cluster.engine import engines
from rlcore.cluster.policy import critic_at, trainer_at
from rlcore.cluster.rollouts import rollouts
from rlcore.cluster.trainer import lend_memory
from rlcore.cluster.transfer import transfer_weights
from rlcore.iteration import Iteration
from rlcore.plan import READS
from rlcore.reports import SyncReport, UpdateReport
from rlcore.sync_check import PROBE_ROWS, check_sync
from tasks.stage import stage


@stage(reads=READS["sync"], writes=SyncReport, to="sync")
def sync(iteration: Iteration, batch: pl.DataFrame, updated: UpdateReport) -> SyncReport:
    """Weights to the engines; then their version, and their log-probabilities on a probe against the trainer's.

    What the scheduler has under way stops between two tokens meanwhile.
    """
    config, store, version = iteration.config, iteration.store, updated.policy_version
    trainer = trainer_at(config, store, version)
    serving, scheduler = engines(config, store), rollouts(config, store)
    scheduler.suspend()
    transfer = transfer_weights(trainer, serving, version)
    probe = batch.filter(pl.col("response_ids").list.len() > 0).head(PROBE_ROWS)
    trainer_logprobs = trainer.logprobs(probe)["logprobs"]
    reports = [
        check_sync(
            transfer,
            wanted_version=version,
            engine=engine.resident.name,
            engine_version=engine.policy_version(),
            engine_logprobs=engine_logprobs,
            trainer_logprobs=trainer_logprobs,
            tolerance=config.sync.probe_tolerance,
        )
        for engine, engine_logprobs in zip(
            serving.engines, serving.score(probe, config.rollout.temperature), strict=True
        )
    ]
    scheduler.resume(version)
    lend_memory(config, trainer, critic_at(config, store, version) if config.algorithm.uses_critic else None)
    return max(reports, key=lambda report: report.probe_gap_mean)
