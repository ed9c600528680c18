"""generate: the responses to an iteration's prompts."""

from __future__ import annotations

import polars as pl

from rlcore.batches import GREEDY, RolloutBatch
from rlcore.cluster.policy import engine_at
from rlcore.generation.requests import greedy_requests, group_requests, rollout_batch
from rlcore.iteration import Iteration
from rlcore.plan import READS
from tasks.stage import stage


@stage(reads=READS["generate"], writes=RolloutBatch, to="rollouts")
def generate(iteration: Iteration, prompts: pl.DataFrame) -> pl.DataFrame:
    """`num_return_sequences_in_group` responses to every prompt, sampled by the engine; a greedy one for ReMax."""
    config = iteration.config
    requests = group_requests(prompts, config.rollout)
    if config.algorithm.uses_greedy_baseline:
        requests += greedy_requests(prompts, config.rollout, suffix=GREEDY)
    engine = engine_at(config, iteration.store, iteration.rollout_version)
    return rollout_batch(prompts, engine.generate(requests))
