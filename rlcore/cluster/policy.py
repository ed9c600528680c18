"""Policy and critic at the version that a stage needs, in the trainer, the critic's ranks and the engine.

A stage that is done in the ledger need not be in any process's memory any more: actors die, and
clusters are started anew. Before a stage uses an actor, it is brought to the version here: restored
from the newest checkpoint, then given the recorded batches after it. Nothing is generated again.
"""

from __future__ import annotations

import logging

from rlcore.cluster.checkpoints import state_directory
from rlcore.cluster.engine import EngineGroup, engines
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
from rlcore.restoration import Restoration, plan_restoration
from rlcore.store import RunStore

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
            restore(config, group, role, store, plan_restoration(store, version or 0, lowest))
        return group


def restore(config: Config, group: RankGroup, role: Role[G], store: RunStore, plan: Restoration) -> None:
    """Load the checkpoint, then apply the recorded updates after it. Each may take as long as a stage.

    Args:
        store: of the run that these are recorded in.

    Raises:
        StoreError: a batch is not what was recorded.
    """
    if plan.checkpoint is not None:
        logger.info("%s restored from %s", role.name, plan.checkpoint)
        group.load_checkpoint(str(state_directory(plan.checkpoint, role)))
    for iteration, batch in plan.batches.items():
        logger.info("%s replays update %d", role.name, iteration)
        with within(config.deadlines.stage_seconds):
            group.update(iteration, batch.sha256, store.read_batch(batch))


def engines_at(config: Config, store: RunStore, policy_version: int) -> EngineGroup:
    """The engines with the weights of `policy_version`."""
    group = engines(config, store)
    behind = group.behind(policy_version)
    if behind.engines:
        transfer_weights(trainer_at(config, store, policy_version), behind, policy_version)
    return group


def reference(config: Config, store: RunStore) -> TrainerGroup:
    """The model as it was at the start, frozen."""
    with stage_lock(store, REFERENCE.name, config.deadlines):
        return rank_group(REFERENCE, config, store)
