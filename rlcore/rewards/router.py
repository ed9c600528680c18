"""Responses to rewards: each response goes to the graders of its domain, in other processes or behind a URL."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import compress
from typing import Any

import polars as pl

from rlcore.batches import COMPONENT, RewardBatch, validate
from rlcore.rewards.interface import Outcome, Task
from rlcore.rewards.judge_server import JudgeServer
from rlcore.rewards.options import SERVICES, ServeOptions
from rlcore.rewards.services import ask_services
from rlcore.rewards.workers import WorkerPool
from rlcore.shaping.combine import combine_graders
from rlcore.shaping.settings import RewardConfig

Served = tuple[str, ServeOptions]
"""A model, and how it is served."""


class RewardRouter:
    """Grades responses in processes that stay warm between calls; `close` ends them.

    The processes start at once and import their graders while the caller goes on.
    """

    def __init__(self, rewards: Mapping[str, RewardConfig], processes: int) -> None:
        self._graders = _graders_of(rewards)
        self._at_once = {domain: reward.at_once for domain, reward in rewards.items()}
        local = set(self._graders["grader"]) - SERVICES
        self._pool = WorkerPool(local, processes if local else 0)
        self._servers = _servers_of(rewards)

    def grade(self, responses: pl.DataFrame) -> pl.DataFrame:
        """A RewardBatch, its rows in the order of the responses.

        Args:
            responses: columns sample_id, domain, prompt_text, response_text, ground_truth (all strings).

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
        ground_truth = pl.coalesce("common_ground_truth", "ground_truth").alias("ground_truth")
        rows = gradings.with_columns(ground_truth).select(Task._fields).iter_rows(named=True)
        tasks = [Task(**row | {"options": json.loads(row["options"])}) for row in rows]
        outcomes = self._outcomes(tasks)
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

    def _outcomes(self, tasks: Sequence[Task]) -> list[Outcome]:
        """One per task, in their order. Services are asked while the grader processes work."""
        asks = [task.grader in SERVICES for task in tasks]
        with ThreadPoolExecutor(1) as beside:
            questions = [self._with_url(task) for task in compress(tasks, asks)]
            asked = beside.submit(ask_services, questions, self._at_once)
            graded = iter(self._pool.run([task for task in tasks if task.grader not in SERVICES], self._at_once))
            answered = iter(asked.result())
        return [next(answered if a_service else graded) for a_service in asks]

    def _with_url(self, task: Task) -> Task:
        """With the URL of the server that was started for its judge."""
        if task.options.get("serve") is None:
            return task
        options = {name: value for name, value in task.options.items() if name != "serve"}
        return task._replace(options=options | {"url": self._servers[_server_of(task.options)].url()})

    def close(self) -> None:
        """End the grader processes, of which another `grade` starts others, and the judges' servers."""
        self._pool.close()
        for server in self._servers.values():
            server.close()


def _servers_of(rewards: Mapping[str, RewardConfig]) -> dict[Served, JudgeServer]:
    """One for each model that is to be a judge, started."""
    graders = [grader for reward in rewards.values() for grader in reward.weighted_graders]
    served = {_server_of(grader.options) for grader in graders if grader.options.get("serve") is not None}
    return {(model, options): JudgeServer(model, options) for model, options in served}


def _server_of(options: Mapping[str, Any]) -> Served:
    return options["model"], ServeOptions.model_validate(options["serve"])


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
