"""The policy at the version that a stage needs, in the trainer and in the engine.

A stage that is done in the ledger need not be in any process's memory any more: actors die, and
clusters are started anew. Before a stage uses an actor, it is brought to the version here: restored
from the newest checkpoint, then given the recorded batches after it. Nothing is generated again.
"""

from __future__ import annotations

import logging

from rlcore.cluster.engine import EngineHandle, engine
from rlcore.cluster.residents import end
from rlcore.cluster.trainer import TrainerGroup, rank_names, trainer_group
from rlcore.cluster.transfer import transfer_weights
from rlcore.config import Config
from rlcore.store import RunStore, StoreError
from rlcore.trainer.checkpoint import CheckpointDamaged, published, verify

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
    # Stages that run at the same time, such as evaluate and checkpoint, must not both restore it.
    with store.lock("trainer"):
        group = trainer_group(config, store.run_id, trainable=True)
        version = group.policy_version()
        if version is None or version > highest:
            logger.warning("the trainer holds version %s, %d is needed: it is made anew", version, highest)
            end(rank_names(config, trainable=True), store.run_id)
            group = trainer_group(config, store.run_id, trainable=True)
            version = group.policy_version()
        if version is None or version < lowest:
            _restore(group, store, lowest)
        return group


def _restore(group: TrainerGroup, store: RunStore, policy_version: int) -> None:
    """Newest good checkpoint, then the recorded updates after it."""
    version = group.policy_version() or 0
    for checkpoint in reversed(published(store.directory / "checkpoints")):
        if not version < int(checkpoint.name) <= policy_version:
            continue
        try:
            verify(checkpoint)
        except CheckpointDamaged as damage:
            logger.warning("%s; the one before it is used", damage)
            continue
        logger.info("trainer restored from %s", checkpoint)
        group.load_checkpoint(str(checkpoint / "megatron"))
        version = int(checkpoint.name)
        break
    for iteration in range(version + 1, policy_version + 1):
        entry = store.find(iteration, "update")
        if entry is None:
            raise StoreError(
                f"{store.url}/ledger.jsonl has no update {iteration}: version {policy_version} cannot be restored"
            )
        logger.info("trainer replays update %d", iteration)
        train_batch = entry.inputs["batch"]
        group.update(iteration, train_batch.sha256, store.read_batch(train_batch))


def serving_engine(config: Config, store: RunStore) -> EngineHandle:
    """The engine with whatever weights it has; with those the run started from where it had to be made."""
    return engine(config, store.run_id, str(store.directory / "logs" / "engine-0.log"))


def engine_at(config: Config, store: RunStore, policy_version: int) -> EngineHandle:
    """The engine with the weights of `policy_version`."""
    handle = serving_engine(config, store)
    if handle.policy_version() != policy_version:
        transfer_weights(config, store, trainer_at(config, store, policy_version), handle, policy_version)
    return handle


def reference(config: Config, store: RunStore) -> TrainerGroup:
    """The model as it was at the start, frozen."""
    return trainer_group(config, store.run_id, trainable=False)
