"""Graders that are services: asked side by side, each domain no more often at once than it may."""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

import httpx

from rlcore.progress import beat
from rlcore.rewards.interface import InfraFault, Outcome, Score, Task

ATTEMPTS = 3
PAUSE_SECONDS = 0.5
"""Before the second attempt; twice as long before each further one."""

Ask = Callable[..., Awaitable[Score]]


def ask_services(tasks: Sequence[Task], at_once: Mapping[str, int]) -> list[Outcome]:
    """One outcome per task, in their order.

    A question that meets a fault of the service is asked again, ATTEMPTS times in all, then it is an `infra_error`; one
    without an answer at its time limit is a `timeout`.

    Args:
        at_once: by domain, how many questions are under way at the same time.
    """
    return asyncio.run(_ask_all(tasks, at_once)) if tasks else []


async def _ask_all(tasks: Sequence[Task], at_once: Mapping[str, int]) -> list[Outcome]:
    gates = {domain: asyncio.Semaphore(count) for domain, count in at_once.items()}
    unlimited = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=None, limits=unlimited) as client, asyncio.TaskGroup() as group:
        questions = [group.create_task(_outcome(client, task, gates[task.domain])) for task in tasks]
    return [question.result() for question in questions]


async def _outcome(client: httpx.AsyncClient, task: Task, gate: asyncio.Semaphore) -> Outcome:
    ask: Ask = importlib.import_module(f"rlcore.rewards.{task.grader}").ask
    async with gate:
        start = time.perf_counter()
        outcome = await _answered(ask, client, task)
        beat()
    return outcome._replace(seconds=time.perf_counter() - start)


async def _answered(ask: Ask, client: httpx.AsyncClient, task: Task) -> Outcome:
    fault = ""
    try:
        async with asyncio.timeout(task.timeout_seconds):
            for attempt in range(ATTEMPTS):
                if attempt:
                    await asyncio.sleep(PAUSE_SECONDS * 2 ** (attempt - 1))
                try:
                    score = await ask(client, task, **task.options)
                except InfraFault as error:
                    fault = str(error)
                else:
                    return Outcome("scored", score.reward, score.components, "", 0.0)
    except TimeoutError:
        why = f"no answer in {task.timeout_seconds:g} s" + (f"; before that: {fault}" if fault else "")
        return Outcome("timeout", None, {}, why, 0.0)
    except Exception as error:
        return Outcome("grader_error", None, {}, f"{type(error).__name__}: {error}", 0.0)
    return Outcome("infra_error", None, {}, f"{ATTEMPTS} attempts failed, the last: {fault}", 0.0)
