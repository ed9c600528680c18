"""ref_logprob and old_logprob: the responses' log-probabilities under the reference and under the policy."""

from __future__ import annotations

import polars as pl

from rlcore.batches import LogprobBatch
from rlcore.cluster.policy import reference, trainer_at
from rlcore.iteration import Iteration
from rlcore.plan import READS
from tasks.stage import stage


@stage(reads=READS["ref_logprob"], writes=LogprobBatch, to="ref_logprobs")
def ref_logprob(iteration: Iteration, rollouts: pl.DataFrame) -> pl.DataFrame:
    """log π_ref: under the model as it was before training."""
    return reference(iteration.config, iteration.store).logprobs(rollouts)


@stage(reads=READS["old_logprob"], writes=LogprobBatch, to="old_logprobs")
def old_logprob(iteration: Iteration, rollouts: pl.DataFrame) -> pl.DataFrame:
    """log π_old: under the trainer's weights before this iteration's update."""
    return trainer_at(iteration.config, iteration.store, iteration.rollout_version).logprobs(rollouts)
