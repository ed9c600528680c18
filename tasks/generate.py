"""generate: a batch of graded responses, collected from the scheduler."""

from __future__ import annotations

import polars as pl

from rlcore.batches import RolloutBatch
from rlcore.cluster.engine import graders
from rlcore.cluster.policy import engines_at
from rlcore.cluster.rollouts import rollouts
from rlcore.iteration import Iteration
from rlcore.plan import READS
from tasks.stage import stage


@stage(reads=READS["generate"], writes=RolloutBatch, to="rollouts")
def generate(iteration: Iteration, prompts: pl.DataFrame) -> pl.DataFrame:
    """`rollout_batch_size` groups of `num_return_sequences_in_group` responses; ReMax's greedy ones with them.

    With async_ratio > 0 the scheduler has been at them since the batch before, and goes on at the next.
    """
    config, store = iteration.config, iteration.store
    engines = engines_at(config, store, iteration.rollout_version)
    collected = rollouts(config, store).collect(iteration.number, prompts, engines, graders(config, store))
    if config.engines_sleep:
        engines.sleep()
    return collected
