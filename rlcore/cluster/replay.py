"""Recorded updates, computed again by a trainer of their own."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import ray

from rlcore.cluster.leaving import uncollected
from rlcore.cluster.policy import restore
from rlcore.cluster.residents import release
from rlcore.cluster.trainer import CRITIC, TRAINER, rank_group
from rlcore.config import Config
from rlcore.recorded_updates import RecordedUpdate, ReplayPlan
from rlcore.reports import UpdateReport
from rlcore.store import RunStore
from rlcore.trainer.checkpoint import HUGGINGFACE, MANIFEST, WEIGHTS, verify
from rlcore.update_comparison import Comparison, compare_reports, compare_weights
from rlcore.weights.bucket import weights_sha256
from rlcore.weights.shared_memory import places_in_file


def replay(config: Config, store: RunStore, plan: ReplayPlan, scratch: RunStore) -> Generator[Comparison, None, None]:
    """Compute the planned updates again, on the Ray cluster of RAY_ADDRESS; what came of each, one after the other.

    Args:
        store: of the run, which is only read. Its own trainer and engine are not touched, and may be at work.
        scratch: an empty directory, for locks and weights. The actors belong to it, and end with the iterator.

    Raises:
        StoreError: a batch is not what was recorded.
        CheckpointDamaged: the weights differ, and those of the checkpoint to compare them with are damaged.
    """
    ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False, logging_level="ERROR")
    scratch.assign_run_id()
    try:
        trainer = rank_group(TRAINER, config, scratch)
        restore(config, trainer, TRAINER, store, plan.start)
        critic = rank_group(CRITIC, config, scratch) if config.algorithm.uses_critic else None
        if critic is not None:
            restore(config, critic, CRITIC, store, plan.start)
        for recorded in plan.updates:
            number, batch = recorded.iteration, recorded.batch
            rows = store.read_batch(batch)
            fitted = critic.update(number, batch.sha256, rows) if critic is not None else None
            report = trainer.update(number, batch.sha256, rows).model_copy(update={"critic": fitted})
            weights = scratch.directory / WEIGHTS
            trainer.export_weights(str(weights))
            yield _compare(store, recorded, report, weights)
    finally:
        release(scratch.run_id)
        with uncollected():
            ray.shutdown()


def _compare(store: RunStore, recorded: RecordedUpdate, report: UpdateReport, weights: Path) -> Comparison:
    digest = weights_sha256(places_in_file(weights))
    checkpoint = store.directory / "checkpoints" / f"{recorded.iteration:06d}"
    difference = None
    if recorded.weights_sha256 not in (None, digest) and (checkpoint / MANIFEST).is_file():
        verify(checkpoint, within=HUGGINGFACE)
        difference = compare_weights(weights, checkpoint / HUGGINGFACE / WEIGHTS, f"checkpoints/{checkpoint.name}")
    metrics, differences = compare_reports(recorded.report, report)
    return Comparison(recorded.iteration, metrics, differences, digest, recorded.weights_sha256, difference)
