"""Whatever happens to it, and whenever, the scheduler keeps its word: the rules of `schedules.Course`."""

from __future__ import annotations

from typing import TypeVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlcore.rollout.rules import Lane
from tests.rollout.schedules import FOREVER, Course, Disturbance, Schedule

T = TypeVar("T")

SECONDS = st.sampled_from([0.0, 0.5, 1.0, 3.0, 7.0, 20.0])
KINDS = ("kill", "attach", "detach", "abort", "pause")


def some(values: st.SearchStrategy[T], most: int = 6) -> st.SearchStrategy[tuple[T, ...]]:
    return st.lists(values, min_size=1, max_size=most).map(tuple)


@st.composite
def schedules(draw: st.DrawFn, *, undisturbed: bool = False) -> Schedule:
    ratio = draw(st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0]))
    lanes = []
    for _ in range(draw(st.integers(1, 2))):
        groups = draw(st.integers(1, 4))
        lanes.append(Lane(groups, int(ratio * groups), draw(st.integers(0, 3)), draw(st.integers(0, 6))))
    disturbance = st.builds(Disturbance, SECONDS, st.sampled_from(KINDS), st.integers(0, 3))
    return Schedule(
        lanes=tuple(lanes),
        async_ratio=ratio,
        restart_interrupted=draw(st.booleans()),
        group_sizes=draw(some(st.integers(1, 3), 2)),
        engines=draw(st.integers(1, 3)),
        capacity=draw(st.integers(1, 4)),
        lengths=draw(some(st.integers(1, 40))),
        crowding=draw(st.sampled_from([0.0, 0.3])),
        grading=draw(some(st.none() | SECONDS).filter(any_number)),
        rewards=draw(some(st.sampled_from([0.0, 1.0]))),
        filtering=draw(st.booleans()),
        training=draw(some(SECONDS, 3)),
        loading=draw(st.sampled_from([0.0, 2.0])),
        abort_seconds=draw(st.sampled_from([0.0, 0.0, 1.5])),
        early=draw(st.booleans()),
        patience=draw(some(st.sampled_from([0.0, 1.0, 8.0]), 2)) + (FOREVER,),
        lives=draw(st.lists(st.floats(0.0, 100.0), max_size=2).map(tuple)),
        disturbances=draw(st.lists(disturbance, max_size=6).map(tuple)),
        iterations=draw(st.integers(1, 5)),
    )


def any_number(grading: tuple[float | None, ...]) -> bool:
    return any(seconds is not None for seconds in grading)


@settings(max_examples=2000, report_multiple_bugs=False, suppress_health_check=list(HealthCheck))
@given(schedules())
def test_every_schedule_keeps_the_rules(schedule: Schedule) -> None:
    course = Course(schedule).run()
    assert course.budget_spent or len(course.batches) == schedule.iterations
