"""sync: the trained weights handed to the engine, and the proof that they arrived."""

from __future__ import annotations

import polars as pl

from rlcore.cluster.policy import critic_at, serving_engine, trainer_at
from rlcore.cluster.trainer import lend_memory
from rlcore.cluster.transfer import transfer_weights
from rlcore.iteration import Iteration
from rlcore.plan import READS
from rlcore.reports import SyncReport, UpdateReport
from rlcore.sync_check import PROBE_ROWS, check_sync
from tasks.stage import stage


@stage(reads=READS["sync"], writes=SyncReport, to="sync")
def sync(iteration: Iteration, batch: pl.DataFrame, updated: UpdateReport) -> SyncReport:
    """Weights to the engine; then its version, and its log-probabilities on a probe against the trainer's."""
    config, store, version = iteration.config, iteration.store, updated.policy_version
    trainer = trainer_at(config, store, version)
    engine = serving_engine(config, store)
    transfer = transfer_weights(config, store, trainer, engine, version)
    probe = batch.filter(pl.col("response_ids").list.len() > 0).head(PROBE_ROWS)
    report = check_sync(
        transfer,
        wanted_version=version,
        engine_version=engine.policy_version(),
        engine_logprobs=engine.score(probe, config.rollout.temperature),
        trainer_logprobs=trainer.logprobs(probe)["logprobs"],
        tolerance=config.sync.probe_tolerance,
    )
    lend_memory(config, trainer, critic_at(config, store, version) if config.algorithm.uses_critic else None)
    return report
