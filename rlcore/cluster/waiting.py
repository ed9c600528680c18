"""Waiting for actors of a run: no longer than the stage may take, and only as long as they move."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError, RayTaskError

from rlcore.cluster.residents import END_SECONDS
from rlcore.cluster.stacks import end_with_stacks
from rlcore.deadlines import DeadlineExceeded, Deadlines, StageStalled, seconds_left
from rlcore.progress import Sight, beat
from rlcore.store import RunStore

LOOKS = 10
"""So often the progress is looked at in the time without any that is a stall, but not more often than each
LEAST_LOOK_SECONDS."""
LEAST_LOOK_SECONDS = 0.5
FETCH_SECONDS = 60.0
"""For a result that is there to be unpacked."""

_engine_seconds: ContextVar[list[float] | None] = ContextVar("engine_seconds", default=None)


@dataclass(frozen=True)
class Supervision:
    """How long to wait for a run's actors, and where their progress is."""

    directory: Path
    """Of the run."""
    deadlines: Deadlines


@dataclass(frozen=True)
class Call:
    """A method that an actor runs."""

    name: str
    """Of the actor."""
    actor: ActorHandle
    result: ray.ObjectRef


@dataclass(frozen=True)
class Settled:
    """What became of a call: its result, or the error."""

    number: int
    """Of the call, among those that were waited for."""
    result: Any
    error: RayError | None


def results_of(
    calls: Sequence[Call], doing: str, supervision: Supervision, silence: float, others: Sequence[str] = ()
) -> list[Any]:
    """What the calls return, in their order.

    Args:
        others: names of actors that work for those that are called.

    Raises:
        What a called method raised, or RayActorError where an actor died; the first that came.
        StageStalled, DeadlineExceeded: as `as_settled`.
    """
    results: dict[int, Any] = {}
    with engine_clock():
        for settled in as_settled(calls, doing, supervision, silence, others=others):
            if isinstance(settled.error, RayTaskError):
                # Ray's own text is the whole remote traceback; that stays as the cause.
                raise settled.error.cause from settled.error
            if settled.error is not None:
                raise settled.error
            results[settled.number] = settled.result
    return [results[number] for number in range(len(calls))]


def as_settled(
    calls: Sequence[Call],
    doing: str,
    supervision: Supervision,
    silence: float,
    grace: float = math.inf,
    others: Sequence[str] = (),
) -> Iterator[Settled]:
    """Results and errors in the order they come; after the first error, those of `grace` seconds.

    Args:
        doing: what the calls do, for people.
        silence: so many seconds without progress of any actor that has not answered, all of them hang.
        others: names of actors whose progress is theirs too.

    Raises:
        StageStalled: they hang.
        DeadlineExceeded: the running stage has no time left; outside of one, the calls had that of a stage.

    Before either is raised, the stacks of the processes that have not answered are in the run's directory, and they and
    their children are killed.
    """
    pending = {call.result: number for number, call in enumerate(calls)}
    sight = Sight(supervision.directory, {call.name for call in calls} | {*others})
    end = time.monotonic() + seconds_left(otherwise=supervision.deadlines.stage_seconds)
    grace_end = math.inf
    look_seconds = max(LEAST_LOOK_SECONDS, silence / LOOKS)
    while pending and (now := time.monotonic()) < grace_end:
        done, _ = ray.wait([*pending], timeout=max(0.0, min(end, grace_end, now + look_seconds) - now))
        for result in done:
            number = pending.pop(result)
            try:
                settled = Settled(number, ray.get(result, timeout=FETCH_SECONDS), None)
            except RayError as error:
                grace_end = min(grace_end, time.monotonic() + grace)
                settled = Settled(number, None, error)
            yield settled
        sight.watch({calls[number].name for number in pending.values()} | {*others})
        if done or not pending:
            continue
        if sight.look():
            # Who waits for the stage sees by this that it waits for something that moves.
            beat()
        left = [calls[number] for number in pending.values()]
        if sight.silent_seconds >= silence:
            _give_up(StageStalled, left, sight, supervision, f"{doing} stands still: no progress in {silence:g} s")
        if time.monotonic() >= end:
            _give_up(DeadlineExceeded, left, sight, supervision, f"{doing} takes too long")


def _give_up(
    kind: type[Exception], pending: Sequence[Call], sight: Sight, supervision: Supervision, why: str
) -> NoReturn:
    ended = end_with_stacks(supervision.directory, sight.last)
    for call in pending:
        ray.kill(call.actor)
    # When its calls have failed, an actor's name is free for the next one.
    results = [call.result for call in pending]
    ray.wait(results, num_returns=len(results), timeout=END_SECONDS)
    raise kind(f"{why}; {ended}")


@contextmanager
def stage_lock(store: RunStore, name: str, deadlines: Deadlines) -> Iterator[None]:
    """A lock of the run's, waited for no longer than the running stage may take.

    Raises:
        LockTimeout: another process held it for that long.
    """
    with store.lock(name, seconds_left(otherwise=deadlines.stage_seconds)):
        yield


@contextmanager
def engine_clock() -> Iterator[None]:
    """The time in this block counts as engine time of the running stage."""
    started = time.perf_counter()
    try:
        yield
    finally:
        seconds = _engine_seconds.get()
        if seconds is not None:
            seconds.append(time.perf_counter() - started)


@contextmanager
def engine_time() -> Iterator[list[float]]:
    """Collects the seconds of every `engine_clock` inside the block."""
    seconds: list[float] = []
    token = _engine_seconds.set(seconds)
    try:
        yield seconds
    finally:
        _engine_seconds.reset(token)
