"""reward: every response graded, routed by domain."""

from __future__ import annotations

import polars as pl

from rlcore.batches import RewardBatch
from rlcore.cluster.engine import graders
from rlcore.iteration import Iteration
from rlcore.plan import READS
from tasks.stage import stage


@stage(reads=READS["reward"], writes=RewardBatch, to="rewards")
def reward(iteration: Iteration, rollouts: pl.DataFrame) -> pl.DataFrame:
    """One reward, or the reason why there is none, for every response.

    Responses are graded as they are generated. If the graders' settings have changed since, they are graded again.
    """
    config = iteration.config
    if rollouts["graded_under"].unique().to_list() == [config.digest("rewards")]:
        return rollouts.select("sample_id", "grade").unnest("grade")
    responses = rollouts.select("sample_id", "domain", "prompt_text", "response_text", "ground_truth")
    return graders(config, iteration.store).grade(responses)
