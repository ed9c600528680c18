"""Responses to rewards: each response goes to the grader of its domain, in another process."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from rlcore.batches import RewardBatch, validate
from rlcore.config import RewardConfig
from rlcore.rewards.interface import Task
from rlcore.rewards.workers import WorkerPool

COMPONENTS = pl.List(pl.Struct({"name": pl.String, "value": pl.Float64}))


class RewardRouter:
    """Grades responses in processes that stay warm between calls; `close` ends them.

    The processes start at once and import their graders while the caller goes on.
    """

    def __init__(self, rewards: Mapping[str, RewardConfig], processes: int) -> None:
        self._rewards = rewards
        self._pool = WorkerPool({reward.grader for reward in rewards.values()}, processes)

    def grade(self, responses: pl.DataFrame) -> pl.DataFrame:
        """A RewardBatch, its rows in the order of the responses.

        Args:
            responses: columns sample_id, domain, response_text, ground_truth (all strings).

        Raises:
            ValueError: a domain has no grader.
            WorkerError: grader processes cannot be started.
        """
        unknown = sorted(set(responses["domain"].unique()) - set(self._rewards))
        if unknown:
            raise ValueError(
                f"no grader for domain {', '.join(map(repr, unknown))}; rewards has {', '.join(sorted(self._rewards))}"
            )
        outcomes = self._pool.run(
            [
                Task(self._rewards[domain].grader, response_text, ground_truth, self._rewards[domain].timeout_seconds)
                for domain, response_text, ground_truth in responses.select(
                    "domain", "response_text", "ground_truth"
                ).iter_rows()
            ]
        )
        rewards = pl.DataFrame(
            {
                "sample_id": responses["sample_id"],
                "reward": pl.Series([outcome.reward for outcome in outcomes], dtype=pl.Float64),
                "reward_status": pl.Series([outcome.status for outcome in outcomes], dtype=pl.String),
                "components": pl.Series(
                    [
                        [{"name": name, "value": value} for name, value in outcome.components.items()]
                        for outcome in outcomes
                    ],
                    dtype=COMPONENTS,
                ),
                "detail": pl.Series([outcome.detail for outcome in outcomes], dtype=pl.String),
                "seconds": pl.Series([outcome.seconds for outcome in outcomes], dtype=pl.Float64),
            }
        )
        return validate(rewards, RewardBatch)

    def close(self) -> None:
        """End the grader processes. Another `grade` starts others."""
        self._pool.close()
