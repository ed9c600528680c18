"""advantage: what the update trains on."""

from __future__ import annotations

import polars as pl

from rlcore.batches import TrainBatch
from rlcore.iteration import Iteration
from rlcore.plan import READS
from rlcore.reports import RunState
from tasks.stage import stage


@stage(reads=READS["advantage"], writes=TrainBatch, to="train")
def advantage(
    iteration: Iteration,
    rollouts: pl.DataFrame,
    rewards: pl.DataFrame,
    old_logprobs: pl.DataFrame | None = None,
    ref_logprobs: pl.DataFrame | None = None,
    values: pl.DataFrame | None = None,
    previous: RunState | None = None,
) -> pl.DataFrame:
    """Rewards to advantages, joined with everything else that the update reads."""
    # Imported by the process that computes, as it takes torch.
    from rlcore.train_batch import assemble_train_batch

    return assemble_train_batch(
        iteration.config, iteration.number, rollouts, rewards, old_logprobs, ref_logprobs, values, previous
    )
