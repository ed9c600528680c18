"""What Prefect tries again by itself: a stage whose processes died, three times, with longer and longer pauses.

A stage that finds a process dead makes it anew and restores what was in it, so another attempt may succeed. What would
fail the same way again (a batch that breaks its schema, a refused update, a wrong configuration) is not attempted
again, and neither is what nobody has judged.
"""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import UUID

from prefect import Task
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext
from ray.exceptions import (
    LocalRayletDiedError,
    NodeDiedError,
    OwnerDiedError,
    RayActorError,
    RaySystemError,
    RpcError,
    WorkerCrashedError,
)

from rlcore.cluster.ranks import RankFailed
from rlcore.deadlines import StageStalled
from rlcore.generation.interface import EngineDied
from rlcore.rewards.interface import GradersDied, ServicesFailed

PAUSES_SECONDS = [1.0, 5.0, 20.0]
"""Before each further attempt."""

TRANSIENT: tuple[type[Exception], ...] = (
    RankFailed,
    EngineDied,
    GradersDied,
    ServicesFailed,
    RayActorError,
    NodeDiedError,
    LocalRayletDiedError,
    OwnerDiedError,
    WorkerCrashedError,
    RaySystemError,
    RpcError,
    ConnectionError,
    StageStalled,
)
"""Errors that say that a process died, could not be reached, or stood still and was ended, or a service failed."""

_attempts: tuple[UUID | None, Counter[str]] = (None, Counter())
"""The task run of this process, which makes all its attempts, with the errors that ended those so far."""


def is_transient(error: object) -> bool:
    """Whether another attempt may succeed. An actor whose constructor raised would raise again."""
    return isinstance(error, TRANSIENT) and not (isinstance(error, RayActorError) and error.actor_init_failed)


def is_worth_another_attempt(task: Task[..., Any], task_run: TaskRun, failed: State[Any]) -> bool:
    """Prefect's `retry_condition_fn` of every stage."""
    return is_transient(failed.data)


def attempt_note(error: Exception) -> str:
    """To say with an error of the running stage: which attempt failed, and what ended those before; empty of the first.

    Called once for every attempt that failed.
    """
    global _attempts
    context = TaskRunContext.get()
    if context is None:
        return ""
    if _attempts[0] != context.task_run.id:
        _attempts = (context.task_run.id, Counter())
    before = _attempts[1]
    number, deaths = before.total() + 1, ", ".join(f"{name} ×{times}" for name, times in before.items())
    before[type(error).__name__] += 1
    return f": attempt {number} of {len(PAUSES_SECONDS) + 1}; died before: {deaths}" if deaths else ""
