"""The policy at the version that a stage needs, in the trainer and in the engine.

A stage that is done in the ledger need not be in any process's memory any more: actors die, and
clusters are started anew. Before a stage uses an actor, it is brought to the version here: restored
from the newest checkpoint, then given the recorded batches after it. Nothing is generated again.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray

from rlcore.cluster.engine import EngineHandle, engine
from rlcore.cluster.trainer import TrainerGroup, trainer_group
from rlcore.config import Config
from rlcore.reports import CheckpointReport
from rlcore.store import RunStore, StoreError
from rlcore.sync_check import Transfer
from rlcore.trainer.checkpoint import CheckpointDamaged, publish, published, verify

logger = logging.getLogger(__name__)


def trainer_at(config: Config, store: RunStore, policy_version: int) -> TrainerGroup:
    """The trainer with exactly `policy_version` updates applied.

    Raises:
        StoreError: an update before it is not in the ledger.
    """
    return _trainer_between(config, store, policy_version, policy_version)


def trainer_for_update(config: Config, store: RunStore, iteration: int) -> TrainerGroup:
    """The trainer, ready for update `iteration`, or past it if it died after stepping and before the ledger knew."""
    return _trainer_between(config, store, iteration - 1, iteration)


def _trainer_between(config: Config, store: RunStore, lowest: int, highest: int) -> TrainerGroup:
    group = trainer_group(config, store.url, trainable=True)
    if group.policy_version() > highest:
        logger.warning("trainer holds version %d, %d is needed: made anew", group.policy_version(), highest)
        for rank in group.ranks:
            ray.kill(rank)
        group = trainer_group(config, store.url, trainable=True)
    if group.policy_version() < lowest:
        _restore(group, store, lowest)
    return group


def _restore(group: TrainerGroup, store: RunStore, policy_version: int) -> None:
    """Newest good checkpoint, then the recorded updates after it."""
    for checkpoint in reversed(published(store.directory / "checkpoints")):
        if not group.policy_version() < int(checkpoint.name) <= policy_version:
            continue
        try:
            verify(checkpoint)
        except CheckpointDamaged as damage:
            logger.warning("%s; the one before it is used", damage)
            continue
        logger.info("trainer restored from %s", checkpoint)
        group.load_checkpoint(str(checkpoint / "megatron"))
        break
    for iteration in range(group.policy_version() + 1, policy_version + 1):
        entry = store.find(iteration, "update")
        if entry is None:
            raise StoreError(
                f"{store.url}/ledger.jsonl has no update {iteration}: version {policy_version} cannot be restored"
            )
        logger.info("trainer replays update %d", iteration)
        train_batch = entry.inputs["batch"]
        group.update(iteration, train_batch.sha256, store.read_batch(train_batch))


def save_checkpoint(config: Config, store: RunStore, policy_version: int) -> CheckpointReport:
    """Publish checkpoints/{policy_version:06d}: what the trainer resumes from, and the model for everybody else.

    Raises:
        StoreError: the run is not on a file system, or it is full.
    """
    started = time.perf_counter()
    trainer = trainer_at(config, store, policy_version)
    final = store.directory / "checkpoints" / f"{policy_version:06d}"
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".saving-", dir=final.parent) as folder:
        staging = Path(folder) / final.name
        trainer.save_checkpoint(str(staging / "megatron"))
        trainer.export_huggingface(str(staging / "huggingface"))
        state = {
            "policy_version": policy_version,
            "prompts_drawn": policy_version * config.rollout.rollout_batch_size,
            "config_digest": config.digest(*type(config).model_fields),
        }
        (staging / "state.json").write_text(json.dumps(state, indent=2))
        publish(staging, final)
    for old in published(final.parent)[: -config.save_total_limit]:
        shutil.rmtree(old)
    return CheckpointReport(
        policy_version=policy_version,
        path=f"checkpoints/{final.name}",
        huggingface_path=f"checkpoints/{final.name}/huggingface",
        bytes=sum(path.stat().st_size for path in final.rglob("*") if path.is_file()),
        seconds=time.perf_counter() - started,
    )


def serving_engine(config: Config, store: RunStore) -> EngineHandle:
    """The engine with whatever weights it has; with those the run started from where it had to be made."""
    return engine(config, store.url, str(store.directory / "logs" / "engine-0.log"))


def engine_at(config: Config, store: RunStore, policy_version: int) -> EngineHandle:
    """The engine with the weights of `policy_version`."""
    handle = serving_engine(config, store)
    if handle.policy_version() != policy_version:
        transfer_weights(trainer_at(config, store, policy_version), handle, policy_version)
    return handle


def transfer_weights(trainer: TrainerGroup, handle: EngineHandle, policy_version: int) -> Transfer:
    """Hand the trainer's weights to the engine through a file in shared memory."""
    with _shared_file() as path:
        started = time.perf_counter()
        size = trainer.export_weights(path)
        exported = time.perf_counter()
        load_seconds = handle.update_weights(path, policy_version)
    return Transfer(bytes=size, export_seconds=exported - started, load_seconds=load_seconds)


@contextmanager
def _shared_file() -> Iterator[str]:
    directory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="rlvr-weights-", dir=directory) as folder:
        yield str(Path(folder) / "weights.safetensors")


def reference(config: Config, store: RunStore) -> TrainerGroup:
    """The model as it was at the start, frozen."""
    return trainer_group(config, store.url, trainable=False)
