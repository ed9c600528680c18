"""The processes of the stages themselves: under a deadline, and watched by the flow."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from rlcore.cluster.node import NodeGone, node_is_gone
from rlcore.cluster.stacks import end_with_stacks
from rlcore.deadlines import StageStalled, within
from rlcore.iteration import Iteration
from rlcore.plan import INPUTS
from rlcore.progress import Sight, doing, progress_file, report_to

SLACK_SECONDS = 30.0
"""What a stage's process gets to say itself that what it waits for hangs, before the flow says it of the process."""
LOOK_SECONDS = 1.0


@contextmanager
def watched(iteration: Iteration, stage_name: str) -> Iterator[None]:
    """In the process of a stage: what it waits for has to be done in time, and its progress can be seen."""
    directory = iteration.store.local_path
    report_to(None if directory is None else progress_file(directory, _name(stage_name)))
    with doing(f"iteration {iteration.number}"), within(iteration.config.deadlines.stage_seconds):
        yield


async def moving(iteration: Iteration, result: ray.ObjectRef) -> None:
    """In the flow: until a stage is done, as long as the stages move.

    Raises:
        NodeGone: the cluster that the stages are on is gone.
        StageStalled: no process of a stage has moved for so long that those it waits for cannot be the reason. Stacks
            of those at work are in the run's directory, and they were ended.
    """
    directory, silent = iteration.store.directory, iteration.config.deadlines.silent_seconds + SLACK_SECONDS
    sight = Sight(directory, {_name(stage) for stage in INPUTS})
    waiting = asyncio.ensure_future(_answer(result))
    try:
        while not (await asyncio.wait({waiting}, timeout=LOOK_SECONDS))[0]:
            if node_is_gone():
                raise NodeGone(
                    "the Ray node of this flow run is gone, and with it the stages that were submitted to it"
                )
            sight.look()
            if sight.silent_seconds >= silent:
                at_work = {name: progress for name, progress in sight.last.items() if progress and progress.steps}
                ended = end_with_stacks(directory, at_work) or "none has begun"
                ray.cancel(result, force=True)
                raise StageStalled(f"the stages stand still: no progress in {silent:g} s; {ended}")
        waiting.result()
    finally:
        waiting.cancel()


async def _answer(result: ray.ObjectRef) -> None:
    await result


def _name(stage_name: str) -> str:
    return f"stage-{stage_name}"
