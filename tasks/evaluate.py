"""evaluate: the held-out prompts, answered greedily and judged."""

from __future__ import annotations

import polars as pl

from rlcore.batches import EvalBatch
from rlcore.cluster.engine import graders
from rlcore.cluster.policy import engines_at
from rlcore.data.prompts import held_out_prompts
from rlcore.generation.requests import evaluation_batch, greedy_requests
from rlcore.iteration import Iteration
from rlcore.plan import READS
from rlcore.reports import SyncReport
from tasks.stage import stage


@stage(reads=READS["evaluate"], writes=EvalBatch, to="evaluation")
def evaluate(iteration: Iteration, synced: SyncReport | None = None) -> pl.DataFrame:
    """One greedy answer to every held-out prompt, by the policy after this iteration; 0 is the untrained one.

    The first grader of a domain judges, alone: further ones reward the form of an answer, not that it is right.
    """
    config, store = iteration.config, iteration.store
    prompts = held_out_prompts(config)
    engines = engines_at(config, store, synced.policy_version if synced else 0)
    generations = engines.generate(greedy_requests(prompts, config.rollout))
    answers = evaluation_batch(prompts, generations)
    given = "domain", "prompt_text", "response_text", "ground_truth"
    responses = answers.select(pl.col("prompt_id").alias("sample_id"), *given)
    grades = graders(config, store).judge(responses).select("sample_id", "reward", "reward_status")
    return answers.join(grades, left_on="prompt_id", right_on="sample_id", how="left", maintain_order="left")
