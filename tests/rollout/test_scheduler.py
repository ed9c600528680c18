"""The scheduler on simulated engines, in virtual time."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from benchmarks.simulation.simulated_engine import SimulatedEngine
from benchmarks.simulation.virtual_time import run_in_virtual_time
from rlcore.generation.interface import EngineDied, Generation, GenerationRequest
from rlcore.rewards.interface import Outcome
from rlcore.rollout.book import Book, RejectionBudgetSpent
from rlcore.rollout.groups import Group, Prompt, Response
from rlcore.rollout.rules import Lane, Rules
from rlcore.rollout.scheduler import RolloutScheduler, StaleEngine
from tests.rollout.prompts import RIGHT, WRONG, hand_over, names

Lengths = dict[str, int]
"""By prompt, tokens of every response to it; a token takes a second."""


def length_of(lengths: Lengths) -> Callable[[GenerationRequest], int]:
    return lambda request: lengths.get(request.request_id.split("#")[0], 10)


class Setting:
    """A scheduler with engines, and what was generated and graded when."""

    def __init__(
        self,
        lane: Lane,
        lengths: Lengths | None = None,
        *,
        async_ratio: float = 0.0,
        engines: int = 2,
        capacity: int = 4,
        wrong: str = "",
    ) -> None:
        self.lengths = lengths or {}
        self.wrong = wrong
        self.requests: list[str] = []
        self.graded: list[tuple[float, str]] = []
        self.grading_seconds = 0.0
        self.failing = 0
        self.book = Book(Rules({"all": lane}, async_ratio), lambda group: any(group.rewards))
        self.scheduler = RolloutScheduler(self.book, self.grade)
        self.capacity = capacity
        self.engines = {f"engine{number}": self.new_engine() for number in range(engines)}
        self.scheduler.attach(self.engines, capacity)

    def new_engine(self) -> SimulatedEngine:
        by_prompt = length_of(self.lengths)

        def length(request: GenerationRequest) -> int:
            self.requests.append(request.request_id)
            return by_prompt(request)

        return SimulatedEngine(length, 1.0)

    async def grade(self, prompt: Prompt, generation: Generation) -> Outcome:
        if self.grading_seconds:
            await asyncio.sleep(self.grading_seconds)
        if self.failing:
            self.failing -= 1
            raise ZeroDivisionError
        self.graded.append((asyncio.get_running_loop().time(), generation.request_id))
        return WRONG if prompt.prompt_id in self.wrong else RIGHT

    async def update(self, version: int) -> None:
        self.scheduler.suspend()
        for engine in self.engines.values():
            engine.load(version)
        await self.scheduler.resume(version)


def virtual(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """The test, in virtual time."""

    def run() -> None:
        run_in_virtual_time(test())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def now() -> float:
    return asyncio.get_running_loop().time()


@virtual
async def test_a_response_is_graded_the_moment_it_ends() -> None:
    setting = Setting(Lane(2), {"a": 5, "b": 30})
    hand_over(setting.book, "a", "b", responses=1)
    await setting.scheduler.collect(1)
    assert setting.graded == [(5.0, "a#0.1"), (30.0, "b#0.1")]


@virtual
async def test_engines_do_not_wait_for_graders() -> None:
    setting = Setting(Lane(3), engines=1, capacity=1)
    setting.grading_seconds = 100.0
    hand_over(setting.book, *"abc", responses=1)
    await setting.scheduler.collect(1)
    assert [seconds for seconds, _ in setting.graded] == [110.0, 120.0, 130.0]


@virtual
async def test_a_batch_ends_with_its_last_prompt_and_what_is_extra_is_aborted() -> None:
    setting = Setting(Lane(2, extra=2), {"a": 5, "b": 500, "c": 7, "d": 500}, engines=4)
    hand_over(setting.book, *"abcd")
    batch = await setting.scheduler.collect(1)
    assert names(batch.groups) == ["a", "c"]
    assert now() == 7.0
    await asyncio.sleep(1.0)
    # Four responses of 7 tokens.
    assert setting.book.waste == {"surplus": 28}
    assert not any(member.running for member in setting.scheduler.fleet.members.values())


@virtual
async def test_engines_are_kept_full() -> None:
    setting = Setting(Lane(8), {name: 3 + number for number, name in enumerate("abcdefgh")}, engines=2, capacity=1)
    hand_over(setting.book, *"abcdefgh", responses=1)
    await setting.scheduler.collect(1)
    # 52 seconds of work for two engines, and at most the longest response more.
    assert now() <= 52 / 2 + 10 / 2
    spans = setting.scheduler.timeline.since_last().engines
    assert {len(times.spans) for times in spans.values()} == {1}
    assert sum(times.tokens for times in spans.values()) == 52


@virtual
async def test_at_ratio_zero_batches_are_the_prompts_that_were_handed_over_in_order() -> None:
    lengths = {f"p{number}": 1 + (number * 37) % 50 for number in range(40)}
    setting = Setting(Lane(4), lengths, engines=3, capacity=2)
    for iteration in range(1, 11):
        expected = [f"p{number}" for number in range(4 * (iteration - 1), 4 * iteration)]
        hand_over(setting.book, *expected, responses=3)
        batch = await setting.scheduler.collect(iteration)
        assert names(batch.groups) == expected
        assert not batch.waste
        await setting.update(iteration)


@virtual
async def test_between_batches_what_may_run_ahead_is_generated_and_graded() -> None:
    setting = Setting(Lane(2, ahead=2), async_ratio=1.0)
    hand_over(setting.book, *"abcd")
    await setting.scheduler.collect(1)
    collected = now()
    await asyncio.sleep(30.0)
    await setting.update(1)
    hand_over(setting.book, *"ef")
    batch = await setting.scheduler.collect(2)
    assert now() == collected + 30.0
    assert names(batch.groups) == ["c", "d"]
    assert {response.version for group in batch.groups for response in group.responses} == {0}


@virtual
async def test_grading_goes_on_while_nothing_is_started() -> None:
    setting = Setting(Lane(1, ahead=2), {"b": 20}, async_ratio=2.0, engines=1, capacity=2)
    setting.grading_seconds = 5.0
    hand_over(setting.book, *"abc")
    await setting.scheduler.collect(1)
    await asyncio.sleep(1.0)
    setting.scheduler.suspend()
    requests = list(setting.requests)
    await asyncio.sleep(100.0)
    assert [run_id for _, run_id in setting.graded[-2:]] == ["b#0.1", "b#1.1"]
    assert setting.requests == requests
    await setting.scheduler.resume(0)
    await asyncio.sleep(0.0)
    assert setting.requests[len(requests) :] == ["c#0.1", "c#1.1"]


@virtual
async def test_a_response_that_runs_across_an_update_has_the_tokens_of_both_versions() -> None:
    setting = Setting(Lane(1, ahead=1), {"b": 20}, async_ratio=1.0)
    hand_over(setting.book, *"ab", responses=1)
    await setting.scheduler.collect(1)
    await asyncio.sleep(2.0)
    await setting.update(1)
    batch = await setting.scheduler.collect(2)
    generation = batch.groups[0].responses[0].generation
    assert generation is not None
    # b ran ahead, from the start; the weights changed after 12 seconds.
    assert generation.policy_versions == [0] * 12 + [1] * 8


@virtual
async def test_what_would_become_too_old_is_aborted_and_started_anew() -> None:
    setting = Setting(Lane(1, ahead=1), {"b": 100}, async_ratio=1.0)
    hand_over(setting.book, *"abc", responses=1)
    await setting.scheduler.collect(1)
    await setting.update(1)
    assert names((await setting.scheduler.collect(2)).groups) == ["c"]
    await setting.update(2)
    assert [run for run in setting.requests if run.startswith("b")] == ["b#0.1"]
    await asyncio.sleep(0.0)
    assert [run for run in setting.requests if run.startswith("b")] == ["b#0.1", "b#0.3"]
    assert setting.book.waste == {"stale": 20}


@virtual
async def test_the_death_of_an_engine_costs_its_running_requests_only() -> None:
    setting = Setting(Lane(4), {"a": 5, "b": 5, "c": 50, "d": 50}, engines=2, capacity=4)
    hand_over(setting.book, *"abcd")
    collecting = asyncio.create_task(setting.scheduler.collect(1))
    await asyncio.sleep(10.0)
    lost = set(setting.scheduler.fleet.members["engine0"].running)
    kept = set(setting.scheduler.fleet.members["engine1"].running)
    assert lost and kept
    setting.engines["engine0"].die()
    batch = await collecting
    runs = {response.run_id for group in batch.groups for response in group.responses}
    assert kept < runs and lost.isdisjoint(runs)
    assert len(setting.requests) == 8 + len(lost)
    assert now() == 60.0


@virtual
async def test_an_engine_that_is_attached_in_the_middle_of_a_batch_gets_its_share() -> None:
    setting = Setting(Lane(2), engines=1, capacity=2)
    hand_over(setting.book, *"ab")
    collecting = asyncio.create_task(setting.scheduler.collect(1))
    await asyncio.sleep(1.0)
    setting.scheduler.attach(setting.engines | {"new": setting.new_engine()}, 2)
    await collecting
    assert now() == 11.0


@virtual
async def test_without_engines_collect_fails_at_once_and_goes_on_with_new_ones() -> None:
    setting = Setting(Lane(1, ahead=1), {"b": 30}, async_ratio=1.0, engines=1)
    hand_over(setting.book, *"ab")
    await setting.scheduler.collect(1)
    setting.engines["engine0"].die()
    await setting.update(1)
    for _ in range(2):
        with pytest.raises(EngineDied, match="no engine is left"):
            await setting.scheduler.collect(2)
    engine = setting.new_engine()
    engine.load(1)
    setting.scheduler.attach({"engine0": engine}, 4)
    assert names((await setting.scheduler.collect(2)).groups) == ["b"]


@virtual
async def test_engines_that_are_attached_after_all_died_are_used_before_the_next_batch_is_asked_for() -> None:
    setting = Setting(Lane(1, ahead=1), {"b": 30}, async_ratio=1.0, engines=1)
    hand_over(setting.book, *"ab")
    await setting.scheduler.collect(1)
    setting.engines["engine0"].die()
    await asyncio.sleep(1.0)
    setting.scheduler.attach({"engine0": setting.new_engine()}, 4)
    await asyncio.sleep(31.0)
    assert [run_id for _, run_id in setting.graded[-2:]] == ["b#0.3", "b#1.3"]


@virtual
async def test_an_engine_with_older_weights_than_it_should_have_is_an_error() -> None:
    setting = Setting(Lane(1), engines=1)
    hand_over(setting.book, "a")
    await setting.scheduler.collect(1)
    await setting.scheduler.resume(1)
    hand_over(setting.book, "b")
    with pytest.raises(StaleEngine, match=r"engine0 sampled b#. under policy version 0, but was to have 1"):
        await setting.scheduler.collect(2)


@virtual
async def test_a_grader_that_fails_is_asked_again_by_the_next_collect_and_nothing_is_generated_anew() -> None:
    setting = Setting(Lane(2))
    setting.failing = 1
    hand_over(setting.book, *"ab")
    with pytest.raises(ZeroDivisionError):
        await setting.scheduler.collect(1)
    batch = await setting.scheduler.collect(1)
    assert names(batch.groups) == ["a", "b"]
    assert len(setting.requests) == 4


@virtual
async def test_every_graded_response_is_told_of_even_if_the_filter_raises() -> None:
    setting = Setting(Lane(1, reserve=0), wrong="a")
    seen: list[str] = []
    setting.scheduler = RolloutScheduler(
        setting.book, setting.grade, seen=lambda response: seen.append(response.run_id)
    )
    setting.scheduler.attach(setting.engines, 4)
    hand_over(setting.book, "a")
    with pytest.raises(RejectionBudgetSpent):
        await setting.scheduler.collect(1)
    assert seen == ["a#0.1", "a#1.1"]


@virtual
async def test_a_response_that_is_being_graded_is_not_graded_again_when_collect_is_called_again() -> None:
    setting = Setting(Lane(1))
    setting.grading_seconds = 10.0
    hand_over(setting.book, "a")
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(6.0):
                await setting.scheduler.collect(1)
    await setting.scheduler.collect(1)
    await asyncio.sleep(100.0)
    assert sorted(setting.graded) == [(20.0, "a#0.1"), (20.0, "a#1.1")]
    # And it is not in the next batch, too.
    await setting.update(1)
    hand_over(setting.book, "b")
    assert names((await setting.scheduler.collect(2)).groups) == ["b"]


@virtual
async def test_a_cancelled_collect_goes_on_and_one_that_is_done_is_returned_again() -> None:
    setting = Setting(Lane(1), {"a": 20})
    hand_over(setting.book, "a")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(15.0):
            await setting.scheduler.collect(1)
    batch = await setting.scheduler.collect(1)
    assert now() == 20.0
    assert await setting.scheduler.collect(1) is batch
    assert len(setting.requests) == 2


@virtual
async def test_what_goes_back_in_the_moment_it_was_started_is_not_generated() -> None:
    setting = Setting(Lane(1, extra=3), engines=1, capacity=2)
    hand_over(setting.book, *"abcd", responses=1)
    await setting.scheduler.collect(1)
    await asyncio.sleep(1.0)
    # c and d took the places of a and b; a was graded, and was enough, before the engine heard of d.
    assert setting.requests == ["a#0.1", "b#0.1", "c#0.1"]
    assert not setting.scheduler.fleet.members["engine0"].running


@virtual
async def test_a_spent_budget_ends_the_batch_with_the_numbers() -> None:
    setting = Setting(Lane(1, reserve=2), wrong="abc")
    hand_over(setting.book, *"abc")
    with pytest.raises(RejectionBudgetSpent, match="rejected 3 prompts for batch 1, and 2 is what"):
        await setting.scheduler.collect(1)
    assert now() == 30.0


@virtual
async def test_a_prompt_that_was_passed_over_is_taken_at_last() -> None:
    setting = Setting(Lane(1, extra=2), {"slow": 15, "slower": 25, "slowest": 35}, engines=3)
    hand_over(setting.book, "slow", "slower", "slowest")
    taken = []
    for iteration in range(1, 10):
        hand_over(setting.book, f"p{iteration}")
        taken += names((await setting.scheduler.collect(iteration)).groups)
        await setting.update(iteration)
        if len(taken) == 3:
            setting.lengths.update({"slower": 10, "slowest": 10})
    assert {"slow", "slower", "slowest"} < set(taken)


@virtual
async def test_a_prompt_that_is_slower_than_all_others_is_taken_too() -> None:
    for async_ratio, ahead, extra in ((0.0, 0, 1), (1.0, 1, 1)):
        setting = Setting(Lane(1, ahead, extra), {"slow": 45}, async_ratio=async_ratio)
        hand_over(setting.book, "slow")
        taken = []
        for iteration in range(1, 41):
            hand_over(setting.book, *(f"p{iteration}.{number}" for number in range(1 + extra)))
            taken += names((await setting.scheduler.collect(iteration)).groups)
            await setting.update(iteration)
        assert "slow" in taken


@virtual
async def test_memory_does_not_grow_with_the_batches() -> None:
    setting = Setting(Lane(4, ahead=2, extra=2, reserve=2), async_ratio=0.5, wrong="x")
    setting.lengths.update({f"p{number}": 1 + (number * 37) % 60 for number in range(2000)})
    handed = 0
    sizes = []
    for iteration in range(1, 301):
        while setting.book.remaining()["all"] < 10:
            hand_over(setting.book, f"p{handed}")
            handed += 1
        await setting.scheduler.collect(iteration)
        setting.scheduler.timeline.since_last()
        await setting.update(iteration)
        if iteration % 100 == 0:
            gc.collect()
            alive = sum(isinstance(thing, Group | Response) for thing in gc.get_objects())
            sizes.append((alive, len(setting.book._waiting), len(setting.scheduler._tasks)))
    most = 3 * (10 + 4)
    assert all(alive <= most and waiting <= 2 * most and tasks <= most for alive, waiting, tasks in sizes)
