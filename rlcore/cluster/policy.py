"""Policy and critic at the version that a stage needs, in the trainer, the critic's ranks and the engine.

A stage that is done in the ledger need not be in any process's memory any more: actors die, and
clusters are started anew. Before a stage uses an actor, it is brought to the version here: restored
from the newest checkpoint, then given the recorded batches after it. Nothing is generated again.
"""

from __future__ import annotations

import logging
from pathlib import Path

from rlcore.cluster.checkpoints import state_directory
from rlcore.cluster.engine import EngineHandle, engine
from rlcore.cluster.trainer import (
    CRITIC,
    REFERENCE,
    TRAINER,
    CriticGroup,
    G,
    RankGroup,
    Role,
    TrainerGroup,
    end_group,
    rank_group,
)
from rlcore.cluster.transfer import transfer_weights
from rlcore.cluster.waiting import stage_lock
from rlcore.config import Config
from rlcore.deadlines import within
from rlcore.store import RunStore, StoreError
from rlcore.trainer.checkpoint import CheckpointDamaged, newest_good, published

logger = logging.getLogger(__name__)


def trainer_at(config: Config, store: RunStore, policy_version: int) -> TrainerGroup:
    """The trainer with exactly `policy_version` updates applied.

    Raises:
        StoreError: an update before it is not in the ledger.
    """
    return _between(TRAINER, config, store, policy_version, policy_version)


def trainer_for_update(config: Config, store: RunStore, iteration: int) -> TrainerGroup:
    """The trainer, ready for update `iteration`, or past it if it died after stepping and before the ledger knew."""
    return _between(TRAINER, config, store, iteration - 1, iteration)


def critic_at(config: Config, store: RunStore, policy_version: int) -> CriticGroup:
    """The critic with as many updates applied as the policy of that version has.

    Raises:
        StoreError: an update before it is not in the ledger.
    """
    return _between(CRITIC, config, store, policy_version, policy_version)


def critic_for_update(config: Config, store: RunStore, iteration: int) -> CriticGroup:
    """The critic, ready for update `iteration`, or past it as `trainer_for_update`."""
    return _between(CRITIC, config, store, iteration - 1, iteration)


def _between(role: Role[G], config: Config, store: RunStore, lowest: int, highest: int) -> G:
    # Stages that run at the same time, such as evaluate and checkpoint, must not both restore it.
    with stage_lock(store, role.name, config.deadlines):
        group = rank_group(role, config, store)
        version = group.policy_version()
        if version is None or version > highest:
            logger.warning("the %s holds version %s, %d is needed: it is made anew", role.name, version, highest)
            end_group(role, store.run_id)
            group = rank_group(role, config, store)
            version = group.policy_version()
        if version is None or version < lowest:
            _restore(config, group, role, store, lowest)
        return group


def _restore(config: Config, group: RankGroup, role: Role[G], store: RunStore, policy_version: int) -> None:
    """Newest good checkpoint, then the recorded updates after it.

    Raises:
        CheckpointDamaged: no checkpoint is good, and the ranks have no update of their own to go on from.
    """
    version = group.policy_version() or 0
    checkpoint = _checkpoint_between(store, version, policy_version)
    if checkpoint is not None:
        logger.info("%s restored from %s", role.name, checkpoint)
        group.load_checkpoint(str(state_directory(checkpoint, role)))
        version = int(checkpoint.name)
    for iteration in range(version + 1, policy_version + 1):
        entry = store.find(iteration, "update")
        if entry is None:
            raise StoreError(
                f"{store.url}/ledger.jsonl has no update {iteration}: version {policy_version} cannot be restored"
            )
        logger.info("%s replays update %d", role.name, iteration)
        train_batch = entry.inputs["batch"]
        with within(config.deadlines.stage_seconds):
            group.update(iteration, train_batch.sha256, store.read_batch(train_batch))


def _checkpoint_between(store: RunStore, held: int, wanted: int) -> Path | None:
    """The newest good checkpoint after version `held`, up to `wanted`; None where going on from `held` is the way."""
    checkpoints = published(store.directory / "checkpoints")
    try:
        return newest_good(path for path in checkpoints if held < int(path.name) <= wanted)
    except CheckpointDamaged as damage:
        if held == 0:
            raise CheckpointDamaged(
                f"{damage}. To have all updates up to {wanted} replayed from the model that the run started from, "
                f"delete the damaged directories under {store.directory / 'checkpoints'}"
            ) from None
        return None


def serving_engine(config: Config, store: RunStore) -> EngineHandle:
    """The engine with whatever weights it has; with those the run started from where it had to be made."""
    return engine(config, store)


def engine_at(config: Config, store: RunStore, policy_version: int) -> EngineHandle:
    """The engine with the weights of `policy_version`."""
    handle = serving_engine(config, store)
    if handle.policy_version() != policy_version:
        transfer_weights(config, store, trainer_at(config, store, policy_version), handle, policy_version)
    return handle


def reference(config: Config, store: RunStore) -> TrainerGroup:
    """The model as it was at the start, frozen."""
    with stage_lock(store, REFERENCE.name, config.deadlines):
        return rank_group(REFERENCE, config, store)
