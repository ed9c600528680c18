"""What a grader is, and what travels between the router and the grader processes.

A grader is a module of this package, and one of two kinds. Most have a pure function

    grade(response_text, ground_truth, **options) -> Score

which runs in a grader process and is killed at its time limit. Those that ask a service have

    async ask(client, task, **options) -> Score

of which the router's process has many under way at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple


class InfraFault(RuntimeError):
    """What a grader needs is not there, or failed: another attempt may find it."""


class GradersFailed(RuntimeError):
    """They gave no score to too many responses of a batch. They would do so again."""


class ServicesFailed(RuntimeError):
    """Too many responses of a batch have no score, as what their graders need failed. Later it may be there."""


class GradersDied(RuntimeError):
    """The process that holds the graders is gone."""


@dataclass(frozen=True, slots=True)
class Score:
    """A graded response.

    Raises:
        ValueError: the reward or a component is not finite.
    """

    reward: float
    components: dict[str, float]
    """What the reward is made of, by name."""

    def __post_init__(self) -> None:
        for name, value in {"reward": self.reward, **self.components}.items():
            if not math.isfinite(value):
                raise ValueError(f"{name} is {value}, but a score must be finite")


class Task(NamedTuple):
    """One response to grade."""

    grader: str
    """A module of rlcore.rewards."""
    domain: str
    prompt_text: str
    """The prompt's last message."""
    response_text: str
    ground_truth: str
    timeout_seconds: float
    options: dict[str, Any]


class Outcome(NamedTuple):
    """What became of a task; the columns of a RewardBatch."""

    status: Literal["scored", "timeout", "grader_error", "infra_error"]
    reward: float | None
    components: dict[str, float]
    detail: str
    seconds: float
