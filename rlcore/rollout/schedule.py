"""What the scheduler did for one batch: `RUN/iterations/<i>/schedule.json`."""

from __future__ import annotations

from collections import Counter

from pydantic import Field

from rlcore.rollout.groups import Batch
from rlcore.rollout.timeline import Times
from rlcore.store import Report, RunStore, iteration_path

SCHEDULE_FILE = "schedule.json"


class EngineSchedule(Report):
    """One engine, from the batch before to this one."""

    busy: list[tuple[float, float]]
    """Spans of Unix time, seconds, in which it had something to do."""
    tokens: int
    """Of the responses that ended."""


class Schedule(Report):
    """One batch."""

    iteration: int
    staleness: dict[int, int]
    """Policy versions between a response's start and the policy that trains on it, to how many responses have it."""
    wasted_tokens: dict[str, int] = Field(default_factory=dict)
    """Response tokens that nobody trains on, by why (rlcore.rollout.groups.Reason)."""
    tokens: int
    """Of the batch."""
    rejected_prompts: int
    started: float
    """Unix time, seconds: when the batch before was complete, or the scheduler was made."""
    collecting: float
    """When the batch was asked for."""
    finished: float
    engines: dict[str, EngineSchedule]
    queue: list[tuple[float, int]]
    """Unix time, and how many responses waited for an engine."""

    @property
    def idle_share(self) -> float:
        """Of the engines' time since the batch before, without anything to do."""
        seconds = (self.finished - self.started) * len(self.engines)
        busy = sum(end - start for engine in self.engines.values() for start, end in engine.busy)
        return max(0.0, 1.0 - busy / seconds) if seconds > 0 else 0.0


def schedule_of(batch: Batch, times: Times, collecting: float) -> Schedule:
    versions = [response.version for group in batch.groups for response in group.responses]
    staleness = Counter(batch.iteration - 1 - version for version in versions if version is not None)
    return Schedule(
        iteration=batch.iteration,
        staleness=dict(sorted(staleness.items())),
        wasted_tokens={reason: tokens for reason, tokens in sorted(batch.waste.items()) if tokens},
        tokens=sum(group.tokens for group in batch.groups),
        rejected_prompts=len(batch.rejected),
        started=times.started,
        collecting=collecting,
        finished=times.finished,
        engines={
            name: EngineSchedule(busy=engine.spans, tokens=engine.tokens) for name, engine in times.engines.items()
        },
        queue=times.queue,
    )


def write_schedule(store: RunStore, schedule: Schedule) -> None:
    store.write_bytes(_path(schedule.iteration), schedule.model_dump_json().encode())


def read_schedule(store: RunStore, iteration: int) -> Schedule | None:
    """None where the iteration has none: it sampled nothing, or its file is gone."""
    path = _path(iteration)
    return Schedule.model_validate_json(store.read_bytes(path)) if store.exists(path) else None


def _path(iteration: int) -> str:
    return f"{iteration_path(iteration)}/{SCHEDULE_FILE}"
