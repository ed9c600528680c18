"""sample: the prompts that an iteration hands over to the scheduler."""

from __future__ import annotations

import polars as pl

from rlcore.batches import PromptBatch
from rlcore.data.prompts import training_sampler
from rlcore.iteration import Iteration
from rlcore.plan import READS
from rlcore.rollout.journal import read_state
from rlcore.rollout.rules import ALL, rules_of
from rlcore.rollout.supply import supplies
from tasks.stage import stage


@stage(reads=READS["sample"], writes=PromptBatch, to="prompts")
def sample(iteration: Iteration) -> pl.DataFrame:
    """The next prompts of the seeded order, as many as have left the scheduler.

    Where nothing runs ahead and nothing is filtered, those are the `rollout_batch_size` prompts of this iteration.
    """
    config, number = iteration.config, iteration.number
    sampler = training_sampler(config)
    wanted = supplies(read_state(iteration.store, number), number, rules_of(config))
    return pl.concat(
        sampler.draw(supply.cursor, supply.count, domain=None if lane == ALL else lane)
        for lane, supply in wanted.items()
    )
