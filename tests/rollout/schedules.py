"""What may happen to a scheduler of rollouts."""

from __future__ import annotations

from dataclasses import dataclass

from rlcore.rollout.rules import Lane

FOREVER = 1e6
"""Seconds; more than any schedule takes."""


@dataclass(frozen=True)
class Disturbance:
    after: float
    """Seconds, since the one before."""
    kind: str
    """kill, attach, detach, abort or pause."""
    engine: int


@dataclass(frozen=True)
class Schedule:
    """What is drawn. Sequences begin anew when they are used up."""

    lanes: tuple[Lane, ...]
    async_ratio: float
    restart_interrupted: bool
    group_sizes: tuple[int, ...]
    engines: int
    capacity: int
    lengths: tuple[int, ...]
    """Of every attempt, tokens; a token takes a second."""
    crowding: float
    """Seconds that every response adds to a step of its engine."""
    grading: tuple[float | None, ...]
    """Seconds; None where the grader fails."""
    rewards: tuple[float, ...]
    filtering: bool
    """Rejects what has no reward above 0."""
    filter_fails: tuple[bool, ...]
    training: tuple[float, ...]
    loading: float
    """Seconds from suspend to the new weights, and from there to resume."""
    abort_seconds: float
    early: bool
    """Prompts are handed over before the training, not after it."""
    patience: tuple[float, ...]
    """Seconds after which collect is cancelled, and called again."""
    lives: tuple[float, ...]
    """Seconds after which the process ends, and another goes on."""
    disturbances: tuple[Disturbance, ...]
    iterations: int

    @property
    def names(self) -> list[str]:
        return [f"lane{number}" for number in range(len(self.lanes))]
