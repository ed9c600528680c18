"""Whatever happens to it, and whenever, the scheduler keeps its word: the rules of `course.Course`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlcore.rollout.rules import Lane
from tests.rollout.course import Course
from tests.rollout.schedules import FOREVER, Disturbance, Schedule

T = TypeVar("T")


def some(values: st.SearchStrategy[T], most: int = 6) -> st.SearchStrategy[tuple[T, ...]]:
    return st.lists(values, min_size=1, max_size=most).map(tuple)


SECONDS = st.sampled_from([0.0, 0.5, 1.0, 3.0, 7.0, 20.0])
RATIOS = st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0])
LANES = some(st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(0, 6)), 2)
"""Groups, extra, reserve."""
REST: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "restart_interrupted": st.booleans(),
        "group_sizes": some(st.integers(1, 3), 2),
        "engines": st.integers(1, 3),
        "capacity": st.integers(1, 4),
        "lengths": some(st.integers(1, 40) | st.just(200)),
        "crowding": st.sampled_from([0.0, 0.3]),
        "grading": some(st.none() | SECONDS).filter(lambda seconds: any(second is not None for second in seconds)),
        "rewards": some(st.sampled_from([0.0, 1.0])),
        "filtering": st.booleans(),
        "filter_fails": some(st.booleans(), 3).filter(lambda fails: not all(fails)),
        "training": some(SECONDS, 3),
        "loading": st.sampled_from([0.0, 2.0]),
        "abort_seconds": st.sampled_from([0.0, 0.0, 1.5]),
        "early": st.booleans(),
        "patience": some(st.sampled_from([0.0, 1.0, 8.0]), 2).map(lambda seconds: (*seconds, FOREVER)),
        "lives": st.lists(st.floats(0.0, 100.0), max_size=2).map(tuple),
        "disturbances": st.lists(
            st.builds(
                Disturbance, SECONDS, st.sampled_from(["kill", "attach", "detach", "abort", "pause"]), st.integers(0, 3)
            ),
            max_size=6,
        ).map(tuple),
        "iterations": st.integers(1, 5),
    }
)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    ratio = draw(RATIOS)
    lanes = [Lane(groups, int(ratio * groups), extra, reserve) for groups, extra, reserve in draw(LANES)]
    return Schedule(lanes=tuple(lanes), async_ratio=ratio, **draw(REST))


@pytest.mark.timeout(300)
@settings(max_examples=1500, suppress_health_check=list(HealthCheck))
@given(schedules())
def test_every_schedule_keeps_the_rules(schedule: Schedule) -> None:
    course = Course(schedule).run()
    assert course.budget_spent or len(course.batches) == schedule.iterations


@settings(max_examples=500, suppress_health_check=list(HealthCheck))
@given(schedules())
def test_without_ratio_filter_or_extra_prompts_batches_are_what_was_handed_over_in_order(schedule: Schedule) -> None:
    lanes = tuple(Lane(lane.groups, reserve=lane.reserve) for lane in schedule.lanes)
    course = Course(replace(schedule, lanes=lanes, async_ratio=0.0, filtering=False)).run()
    for number, batch in enumerate(course.batches):
        for name, lane in zip(schedule.names, lanes, strict=True):
            prompts = [group.prompt.prompt_id for group in batch.groups if group.lane == name]
            assert prompts == course.handed[name][number * lane.groups : (number + 1) * lane.groups]
