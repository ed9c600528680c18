"""reward: every response graded, routed by domain."""

from __future__ import annotations

import polars as pl

from rlcore.batches import RewardBatch
from rlcore.cluster.engine import graders
from rlcore.iteration import Iteration
from rlcore.plan import READS
from tasks.stage import stage


@stage(reads=READS["reward"], writes=RewardBatch, to="rewards")
def reward(iteration: Iteration, prompts: pl.DataFrame, rollouts: pl.DataFrame) -> pl.DataFrame:
    """One reward, or the reason why there is none, for every response."""
    responses = rollouts.select("sample_id", "prompt_id", "domain", "response_text").join(
        prompts.select("prompt_id", "ground_truth"), on="prompt_id", how="left", maintain_order="left"
    )
    return graders(iteration.config, iteration.store).grade(responses)
