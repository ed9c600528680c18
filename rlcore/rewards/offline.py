"""Responses in a file, graded as in a training."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import BaseModel, ConfigDict, ValidationError

from rlcore.compose import compose
from rlcore.config_errors import ConfigError, nearest
from rlcore.data.datasets import DatasetError
from rlcore.rewards.options import OPTIONS
from rlcore.rewards.router import RewardRouter
from rlcore.shaping.settings import RewardConfig


class GivenResponse(BaseModel):
    """A line of the file. Keys that are not these stay unread."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    prompt: str = ""
    """Only a service reads it."""
    response: str
    ground_truth: str | dict[str, Any] = ""
    id: str | None = None
    """Its line, if it has none."""


def read_responses(path: Path) -> pl.DataFrame:
    """A JSONL file of objects with response, ground_truth and perhaps id.

    Returns:
        Columns sample_id, prompt_text, response_text, ground_truth.

    Raises:
        DatasetError: a line is no such object, or two have one id. Names file and line.
        FileNotFoundError: there is no such file.
    """
    rows: dict[str, tuple[str, str, str, str]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            given = GivenResponse.model_validate_json(line)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            where = ".".join(map(str, problem["loc"]))
            raise DatasetError(
                f"{path}:{number}: {f'{where}: ' if where else ''}{problem['msg']}; "
                'expected one object per line, {"response": "…", "ground_truth": "…"}, perhaps with an id'
            ) from None
        name = given.id or str(number)
        if name in rows:
            raise DatasetError(f"{path}:{number}: the id {name!r} was there before; give each response one of its own")
        truth = given.ground_truth if isinstance(given.ground_truth, str) else json.dumps(given.ground_truth)
        rows[name] = name, given.prompt, given.response, truth
    columns = "sample_id", "prompt_text", "response_text", "ground_truth"
    return pl.DataFrame([*rows.values()], schema=dict.fromkeys(columns, pl.String), orient="row")


def reward_config(domain: str, config: str | None, overrides: list[str]) -> tuple[RewardConfig, int]:
    """How a domain of a configuration is graded, or what one grader says; and in how many processes.

    Raises:
        ConfigError: the configuration has no such domain, or there is no such grader.
    """
    if config is None:
        if domain not in OPTIONS:
            raise ConfigError(f"no grader {domain!r}; {nearest(domain, [*OPTIONS])}; or name a configuration: --config")
        return RewardConfig.model_validate({"grader": domain}), os.cpu_count() or 1
    composed = compose(config, overrides)
    if domain not in composed.rewards:
        raise ConfigError(f"{config} has no domain {domain!r} in rewards; {nearest(domain, [*composed.rewards])}")
    return composed.rewards[domain], composed.hardware.reward_processes


def grade_offline(domain: str, reward: RewardConfig, responses: pl.DataFrame, processes: int) -> pl.DataFrame:
    """A RewardBatch of what `read_responses` returned.

    Raises:
        WorkerError: grader processes cannot be started.
    """
    router = RewardRouter({domain: reward}, processes)
    try:
        return router.grade(responses.with_columns(domain=pl.lit(domain)))
    finally:
        router.close()
