"""statistics: what later iterations need to know of this one."""

from __future__ import annotations

import polars as pl

from rlcore.iteration import Iteration
from rlcore.plan import READS
from rlcore.reports import RunState
from tasks.stage import stage


@stage(reads=READS["statistics"], writes=RunState, to="statistics")
def statistics(
    iteration: Iteration,
    rollouts: pl.DataFrame,
    rewards: pl.DataFrame,
    old_logprobs: pl.DataFrame | None = None,
    ref_logprobs: pl.DataFrame | None = None,
    previous: RunState | None = None,
) -> RunState:
    """The run's state after this iteration: statistics of its rewards, histories of its prompts, the KL coefficient."""
    # Imported by the process that computes, as it takes torch.
    from rlcore.run_state import next_state

    return next_state(iteration.config, iteration.number, rollouts, rewards, old_logprobs, ref_logprobs, previous)
