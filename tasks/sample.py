"""sample: the prompts of an iteration."""

from __future__ import annotations

import polars as pl

from rlcore.batches import PromptBatch
from rlcore.data.prompts import training_sampler
from rlcore.iteration import Iteration
from rlcore.plan import READS
from tasks.stage import stage


@stage(reads=READS["sample"], writes=PromptBatch, to="prompts")
def sample(iteration: Iteration) -> pl.DataFrame:
    """The next `rollout_batch_size` prompts of the seeded order."""
    size = iteration.config.rollout.rollout_batch_size
    sampler = training_sampler(iteration.config)
    return sampler.draw(cursor=(iteration.number - 1) * size, count=size)
