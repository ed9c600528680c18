"""Responses to rewards: each response goes to the graders of its domain, in other processes."""

from __future__ import annotations

import json
from collections.abc import Mapping

import polars as pl

from rlcore.batches import COMPONENT, RewardBatch, validate
from rlcore.rewards.interface import Task
from rlcore.rewards.workers import WorkerPool
from rlcore.shaping.combine import combine_graders
from rlcore.shaping.settings import RewardConfig


class RewardRouter:
    """Grades responses in processes that stay warm between calls; `close` ends them.

    The processes start at once and import their graders while the caller goes on.
    """

    def __init__(self, rewards: Mapping[str, RewardConfig], processes: int) -> None:
        self._graders = _graders_of(rewards)
        self._pool = WorkerPool(set(self._graders["grader"]), processes)

    def grade(self, responses: pl.DataFrame) -> pl.DataFrame:
        """A RewardBatch, its rows in the order of the responses.

        Args:
            responses: columns sample_id, domain, response_text, ground_truth (all strings).

        Raises:
            ValueError: a domain has no grader.
            WorkerError: grader processes cannot be started.
        """
        return self._grade(responses, self._graders)

    def judge(self, responses: pl.DataFrame) -> pl.DataFrame:
        """As `grade`, by the first grader of each domain alone and without its weight: how right the answers are."""
        first = self._graders.unique("domain", keep="first", maintain_order=True)
        return self._grade(responses, first.with_columns(weight=pl.lit(1.0)))

    def _grade(self, responses: pl.DataFrame, graders: pl.DataFrame) -> pl.DataFrame:
        known = set(graders["domain"])
        if unknown := sorted(set(responses["domain"].unique()) - known):
            raise ValueError(
                f"no grader for domain {', '.join(map(repr, unknown))}; rewards has {', '.join(sorted(known))}"
            )
        gradings = responses.join(graders, on="domain", how="left", maintain_order="left_right")
        ground_truth = pl.coalesce("common_ground_truth", "ground_truth")
        rows = gradings.select("grader", "response_text", ground_truth, "timeout_seconds", "options").iter_rows()
        outcomes = self._pool.run(
            [
                Task(grader, response, truth, seconds, json.loads(options))
                for grader, response, truth, seconds, options in rows
            ]
        )
        verdicts = pl.DataFrame(
            {
                **gradings.select("sample_id", "grader", "weight").to_dict(),
                "reward": pl.Series([outcome.reward for outcome in outcomes], dtype=pl.Float64),
                "reward_status": pl.Series([outcome.status for outcome in outcomes], dtype=pl.String),
                "components": pl.Series(
                    [
                        [{"name": name, "value": value} for name, value in outcome.components.items()]
                        for outcome in outcomes
                    ],
                    dtype=pl.List(COMPONENT),
                ),
                "detail": pl.Series([outcome.detail for outcome in outcomes], dtype=pl.String),
                "seconds": pl.Series([outcome.seconds for outcome in outcomes], dtype=pl.Float64),
            }
        )
        return validate(combine_graders(verdicts), RewardBatch)

    def close(self) -> None:
        """End the grader processes. Another `grade` starts others."""
        self._pool.close()


def _graders_of(rewards: Mapping[str, RewardConfig]) -> pl.DataFrame:
    """One row per domain and grader, in the order of the configuration."""
    rows = [
        (
            domain,
            weighted.grader,
            weighted.weight,
            weighted.ground_truth,
            reward.timeout_seconds,
            json.dumps(weighted.options),
        )
        for domain, reward in rewards.items()
        for weighted in reward.weighted_graders
    ]
    schema = {
        "domain": pl.String,
        "grader": pl.String,
        "weight": pl.Float64,
        "common_ground_truth": pl.String,
        "timeout_seconds": pl.Float64,
        "options": pl.String,
    }
    return pl.DataFrame(rows, schema=schema, orient="row")
