"""How long a stage may take, how long nothing may move in it, and what is raised where it is longer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from rlcore.section import Section

Seconds = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


class Deadlines(Section):
    """When a stage that does not end is ended. Seconds of wall time."""

    stall_seconds: Seconds = 300.0
    """So long without progress (a token, a graded response, a micro-batch), the processes that a stage waits for hang.
    Graders get a response's time limit more."""
    silent_seconds: Seconds = 900.0
    """The same of what shows no progress while it lasts: to load a model, to write or read a checkpoint, to hand
    weights to the engine, and what a stage computes itself."""
    stage_seconds: Seconds = 3600.0
    """A stage that takes longer is ended even if it moves. An update that a restored trainer replays has as long."""


class StageStalled(RuntimeError):
    """What a stage waits for has made no progress. The processes were ended: the next attempt makes them anew."""


class DeadlineExceeded(RuntimeError):
    """A stage took too long. The processes that it waited for were ended: the next attempt makes them anew."""


@dataclass
class _Clock:
    ends: float


_stage: ContextVar[_Clock | None] = ContextVar("stage", default=None)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """What is waited for in this block, on this thread, ends in that time. Of blocks within blocks the inner counts,
    and the time spent in it is not the outer's.
    """
    outer, started = _stage.get(), time.monotonic()
    token = _stage.set(_Clock(started + seconds))
    try:
        yield
    finally:
        _stage.reset(token)
        if outer is not None:
            outer.ends += time.monotonic() - started


def seconds_left(otherwise: float) -> float:
    """Until the block of `within` has to end, 0 if it should have; `otherwise` outside of one."""
    clock = _stage.get()
    return otherwise if clock is None else max(0.0, clock.ends - time.monotonic())
