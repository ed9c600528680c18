"""The decorator that makes a Prefect task of a stage, and the rule that a finished stage is not repeated.

A stage is a plain function: an `Iteration` and the outputs of earlier stages in, one output out.
Its identity is the digest of iteration, name, inputs, and the configuration it reads. If the ledger has
that identity and the recorded file is intact, the stage is done: the recorded reference comes back in
the Prefect state `Cached`, and nothing runs. Prefect's own result cache is off: it would take two equal calls for one.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import time
from collections.abc import Callable
from functools import wraps
from typing import Any, get_type_hints

import polars as pl
from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed
from prefect_ray.task_runners import PrefectRayFuture

from rlcore.batches import Batch
from rlcore.cluster.waiting import engine_time
from rlcore.iteration import Iteration
from rlcore.plan import UPDATED, also_reads, is_repeated
from rlcore.reports import REPORTS
from rlcore.store import BatchRef, LedgerEntry, Report
from tasks.hangs import moving, watched
from tasks.retries import PAUSES_SECONDS, attempt_note, is_worth_another_attempt

logger = logging.getLogger(__name__)


def stage(
    *, reads: tuple[str, ...], writes: type[Batch] | type[Report], to: str
) -> Callable[[Callable[..., Any]], Task[..., Any]]:
    """Make a Prefect task of a stage function.

    The function's parameters after `iteration` are its inputs: a `pl.DataFrame` is read and validated, a
    `Report` parsed, a `BatchRef` passed on. The task takes a `BatchRef` for each, or None where the plan
    has no such stage.

    Args:
        reads: the configuration fields that the result depends on, dotted for one key of a section.
        writes: schema of the output.
        to: name of the output's file in the iteration's directory, without ending.
    """

    def decorate(compute: Callable[..., Any]) -> Task[..., Any]:
        name = compute.__name__
        hints = get_type_hints(compute)

        @wraps(compute)
        def run(iteration: Iteration, **inputs: BatchRef | None) -> BatchRef | State[BatchRef]:
            with watched(iteration, name):
                return once(iteration, inputs)

        def once(iteration: Iteration, inputs: dict[str, BatchRef | None]) -> BatchRef | State[BatchRef]:
            refs = {key: ref for key, ref in inputs.items() if ref is not None}
            identity = identity_of(iteration, name, refs, reads)
            done = iteration.store.find(iteration.number, name)
            if done is not None and done.identity == identity and _stands(iteration, done):
                return Completed(name="Cached", message="read back from the ledger", data=done.output)

            started_at, started = time.time(), time.perf_counter()
            values = {key: _read(iteration, ref, hints[key]) for key, ref in refs.items()}
            with engine_time() as engine_seconds:
                try:
                    output = compute(iteration, **values)
                except Exception as error:
                    error.add_note(f"stage {name}, iteration {iteration.number}{attempt_note(error)}")
                    raise
            if isinstance(output, Report):
                ref = iteration.store.write_report(iteration.number, to, output)
            else:
                assert issubclass(writes, Batch)
                ref = iteration.store.write_batch(iteration.number, to, output, writes)
            iteration.store.record(
                LedgerEntry(
                    iteration=iteration.number,
                    stage=name,
                    identity=identity,
                    inputs=refs,
                    output=ref,
                    policy_version=iteration.number if name in UPDATED else iteration.rollout_version,
                    started_at=started_at,
                    finished_at=time.time(),
                    seconds=time.perf_counter() - started,
                    engine_seconds=sum(engine_seconds),
                )
            )
            return ref

        # Prefect binds calls by signature: inputs by name, all references.
        parameters = list(inspect.signature(compute).parameters.values())
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [parameters[0], *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY, default=None) for p in parameters[1:])]
        )
        return Task(
            run,
            name=name,
            cache_policy=NO_CACHE,
            persist_result=False,
            retries=len(PAUSES_SECONDS),
            retry_delay_seconds=PAUSES_SECONDS,
            retry_condition_fn=is_worth_another_attempt,
        )

    return decorate


def _stands(iteration: Iteration, done: LedgerEntry) -> bool:
    """Whether a finished stage stays as it is: its output is intact, or must not be replaced any more."""
    store, number = iteration.store, iteration.number
    damage = store.damage(done.output)
    if damage is None:
        return True
    if is_repeated(done.stage, updated=store.find(number, "update") is not None):
        logger.warning("%s: stage %s is computed again, with what depends on it", damage, done.stage)
        return False
    logger.warning(
        "%s: stage %s is not computed again, as update %d was applied to what came of it; the run goes on without it",
        damage,
        done.stage,
        number,
    )
    return True


def identity_of(iteration: Iteration, stage_name: str, inputs: dict[str, BatchRef], reads: tuple[str, ...]) -> str:
    """sha256 over everything that decides a stage's output."""
    parts = {
        "iteration": iteration.number,
        "stage": stage_name,
        "inputs": {key: ref.sha256 for key, ref in inputs.items()},
        "config": iteration.config.digest(*reads, *also_reads(stage_name, iteration.config)),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _read(iteration: Iteration, ref: BatchRef, kind: Any) -> pl.DataFrame | Report | BatchRef:
    if kind is BatchRef:
        return ref
    if ref.schema_name in REPORTS:
        return iteration.store.read_report(ref, REPORTS[ref.schema_name])
    return iteration.store.read_batch(ref)


async def await_stages(iteration: Iteration, *futures: PrefectRayFuture[Any] | None) -> None:
    """Until every submitted stage is done, in the order of the stages.

    In that order, the error that is raised is the first stage's that failed, not one of those it kept from running.
    Waiting does not block the event loop, so an interrupt is heard at once.

    Raises:
        NodeGone: the Ray cluster that they are on is gone.
        StageStalled: the process of a stage hangs.
        Exception: what a stage failed with.
    """
    for future in futures:
        if future is not None:
            await moving(iteration, future.wrapped_future)
            future.result()
