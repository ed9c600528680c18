"""values: what the critic expects of the responses."""

from __future__ import annotations

import polars as pl

from rlcore.batches import ValueBatch
from rlcore.cluster.policy import critic_at
from rlcore.iteration import Iteration
from rlcore.plan import READS
from tasks.stage import stage


@stage(reads=READS["values"], writes=ValueBatch, to="values")
def values(iteration: Iteration, rollouts: pl.DataFrame) -> pl.DataFrame:
    """V of the state before every response token, by the critic before this iteration's update."""
    return critic_at(iteration.config, iteration.store, iteration.rollout_version).values(rollouts)
