"""generate: the responses to an iteration's prompts."""

from __future__ import annotations

import polars as pl

from rlcore.batches import RolloutBatch
from rlcore.cluster.policy import engine_at
from rlcore.generation.requests import group_requests, rollout_batch
from rlcore.iteration import Iteration
from tasks.stage import stage


@stage(reads=("model", "rollout"), writes=RolloutBatch, to="rollouts")
def generate(iteration: Iteration, prompts: pl.DataFrame) -> pl.DataFrame:
    """`num_return_sequences_in_group` responses to every prompt, sampled by the engine."""
    engine = engine_at(iteration.config, iteration.store, iteration.rollout_version)
    generations = engine.generate(group_requests(prompts, iteration.config.rollout))
    return rollout_batch(prompts, generations)
