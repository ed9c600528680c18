"""reward: every response graded, routed by domain."""

from __future__ import annotations

import polars as pl

from rlcore.batches import RewardBatch
from rlcore.cluster.engine import graders
from rlcore.iteration import Iteration
from rlcore.plan import READS
from rlcore.rewards.failures import LOST, check_failed_share
from tasks.stage import stage


@stage(reads=READS["reward"], writes=RewardBatch, to="rewards")
def reward(iteration: Iteration, rollouts: pl.DataFrame) -> pl.DataFrame:
    """One reward, or the reason why there is none, for every response.

    Responses are graded as they are generated. Those whose graders' services failed then are graded again here, and all
    of them if the graders' settings have changed since.
    """
    config = iteration.config
    grades = rollouts.select("sample_id", "domain", "grade").unnest("grade")
    under_these_settings = rollouts["graded_under"].unique().to_list() == [config.digest("rewards")]
    again = grades.filter(LOST if under_these_settings else pl.lit(True)).select("sample_id")
    if len(again):
        columns = "sample_id", "domain", "prompt_text", "response_text", "ground_truth"
        regraded = graders(config, iteration.store).grade(rollouts.select(columns).join(again, on="sample_id"))
        grades = grades.update(regraded, on="sample_id", include_nulls=True)
    check_failed_share(config.rewards, grades)
    return grades.drop("domain")
