"""A schedule as it is run, in virtual time, with an account that owes the book nothing."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from benchmarks.simulation.simulated_engine import SimulatedEngine
from benchmarks.simulation.virtual_time import run_in_virtual_time
from rlcore.generation.interface import EngineDied, Generation, GenerationRequest
from rlcore.rewards.interface import Outcome
from rlcore.rollout.book import Book, RejectionBudgetSpent
from rlcore.rollout.groups import Batch, Group, Prompt, Response
from rlcore.rollout.rules import Rules
from rlcore.rollout.scheduler import RolloutScheduler
from tests.rollout.schedules import FOREVER, Schedule

T = TypeVar("T")

RETRY_SECONDS = 0.25
"""Between a collect that failed and the next."""


class Failed(RuntimeError):
    """The grader, or the filter."""


class Verdict(NamedTuple):
    seconds: float
    lane: str
    accepted: bool


@dataclass
class Course:
    """Fails where something came out that must not."""

    schedule: Schedule
    handed: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Prompts by lane, in order."""
    batches: list[Batch] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    """Prompts that came out, in a batch or as rejected by it."""
    version: int = 0
    budget_spent: bool = False
    started: dict[str, int] = field(default_factory=dict)
    """Version of the weights that each attempt was started under."""
    running: dict[str, str] = field(default_factory=dict)
    """Lane of each attempt that an attached engine runs."""
    graded: dict[str, Outcome] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    """Of the filter, by prompt, on what no batch had yet."""
    returned: int = 0
    """Tokens that engines gave back in this life."""
    is_collecting: bool = False
    drawn: Counter[str] = field(default_factory=Counter)
    at_work: int = 0
    idle_since: float | None = None
    life: int = 0
    broken: list[str] = field(default_factory=list)
    """What must not happen, and did, where the scheduler catches exceptions."""

    def run(self) -> Course:
        for seconds in (*self.schedule.lives, FOREVER):
            try:
                run_in_virtual_time(self._live(seconds))
            except TimeoutError:
                assert seconds != FOREVER, "it goes on forever"
            self.life += 1
            if self.budget_spent or len(self.batches) == self.schedule.iterations:
                break
        return self

    async def _live(self, seconds: float) -> None:
        """Until the process ends, or everything is done."""
        schedule = self.schedule
        rules = Rules(dict(zip(schedule.names, schedule.lanes, strict=True)), schedule.async_ratio)
        self.rules = replace(rules, restart_interrupted=schedule.restart_interrupted)
        self.book = Book(self.rules, self._accepts, version=self.version, iteration=len(self.batches))
        self.scheduler = RolloutScheduler(self.book, self._grade, seen=self._see)
        self.running, self.verdicts, self.returned, self.at_work = {}, {}, 0, 0
        self.inherited = len(self.batches)
        self.is_collecting, self.is_updating, self.idle_since = False, False, None
        self.engines: dict[str, WatchedEngine] = {}
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: self.broken.append(repr(context)))
        self.attach(schedule.engines)
        for lane, prompts in self.handed.items():
            for prompt in prompts:
                if prompt not in self.used:
                    self._hand_over(lane, prompt)
        disturbing = asyncio.create_task(self._disturb())
        try:
            async with asyncio.timeout(seconds):
                while len(self.batches) < schedule.iterations:
                    if self.version < len(self.batches):
                        await self._train()
                    self._refill()
                    if not await self._collect():
                        break
            if disturbing.done():
                disturbing.result()
        finally:
            disturbing.cancel()
            assert not self.broken, self.broken
        self._check_accounts()

    def _refill(self) -> None:
        for lane, remaining in self.book.remaining().items():
            for _ in range(self.rules.lanes[lane].population - remaining):
                prompt = f"{lane}-{len(self.handed[lane])}"
                self.handed[lane].append(prompt)
                self._hand_over(lane, prompt)

    def _hand_over(self, lane: str, prompt: str) -> None:
        size = self._next("size", self.schedule.group_sizes, at=int(prompt.split("-")[1]))
        requests = [
            GenerationRequest(f"{self.life}/{prompt}#{index}", [len(prompt)], 1000, 1.0, 0) for index in range(size)
        ]
        self.book.hand_over(lane, Prompt(prompt, lane, (len(prompt),), "", ""), requests)

    async def _train(self) -> None:
        if self.schedule.early:
            self._refill()
        await asyncio.sleep(self._next("training", self.schedule.training))
        self.is_updating = True
        self.scheduler.suspend()
        await asyncio.sleep(self.schedule.loading)
        self.version += 1
        for engine in self.engines.values():
            engine.load(self.version)
        await asyncio.sleep(self.schedule.loading)
        await self.scheduler.resume(self.version)
        self.is_updating = False
        oldest = self.version - math.ceil(self.schedule.async_ratio)
        stale = [run for run in self.running if self.started[run] < oldest]
        self.require(not stale or self.schedule.abort_seconds > 0, f"{stale} run in vain")

    async def _collect(self) -> bool:
        """Whether the run can go on."""
        self.is_collecting = True
        iteration = len(self.batches) + 1
        while True:
            try:
                with self._must_work():
                    async with asyncio.timeout(self._next("patience", self.schedule.patience)) as patience:
                        batch = await self.scheduler.collect(iteration)
                break
            except TimeoutError:
                if not patience.expired():
                    raise
            except Failed:
                pass
            except EngineDied:
                assert not any(engine.is_attached for engine in self.engines.values())
                await asyncio.sleep(RETRY_SECONDS)
                self.attach(1)
            except RejectionBudgetSpent as error:
                self._check_spent(str(error))
                return False
            await asyncio.sleep(RETRY_SECONDS)
        self.is_collecting = False
        self.check_live()
        self._check(batch, iteration)
        assert await self.scheduler.collect(iteration) is batch
        self.batches.append(batch)
        self.used.update(group.prompt.prompt_id for group in (*batch.groups, *batch.rejected))
        self.verdicts = {prompt: verdict for prompt, verdict in self.verdicts.items() if prompt not in self.used}
        return True

    # What the scheduler is given.

    def attach(self, count: int) -> None:
        """So many more engines, instead of what is dead."""
        self.engines = {name: engine for name, engine in self.engines.items() if engine.is_attached}
        for _ in range(count):
            name = next(name for number in range(100) if (name := f"engine{number}") not in self.engines)
            self.engines[name] = WatchedEngine(self, self.schedule)
            self.engines[name].load(self.version)
        self.scheduler.attach(self.engines, self.schedule.capacity)

    def _accepts(self, group: Group) -> bool:
        if self._next("filter", self.schedule.filter_fails):
            raise Failed
        generations = [response.generation for response in group.responses]
        self.require(None not in generations, "a group was filtered that is not complete")
        rewards = [self.graded[generation.request_id].reward for generation in generations if generation]
        accepted = any(rewards) or not self.schedule.filtering
        self.verdicts[group.prompt.prompt_id] = Verdict(asyncio.get_running_loop().time(), group.lane, accepted)
        return accepted

    async def _grade(self, prompt: Prompt, generation: Generation) -> Outcome:
        self.require(generation.finish_reason == "stop", "an aborted response was graded")
        self.require(f"/{prompt.prompt_id}#" in generation.request_id, "another prompt's response was graded")
        self.require(generation.request_id not in self.graded, "a response was graded twice")
        seconds = self._next("grading", self.schedule.grading)
        with self.working():
            await asyncio.sleep(seconds or 0.0)
        if seconds is None:
            raise Failed
        outcome = Outcome("scored", self._next("reward", self.schedule.rewards), {}, "", seconds)
        self.graded[generation.request_id] = outcome
        return outcome

    def _see(self, response: Response) -> None:
        assert response.generation is not None
        self.require(response.outcome is self.graded[response.generation.request_id], "that is not what it was graded")
        self.seen[response.generation.request_id] += 1

    async def _disturb(self) -> None:
        for disturbance in self.schedule.disturbances:
            await asyncio.sleep(disturbance.after)
            attached = [engine for engine in self.engines.values() if engine.is_attached]
            chosen = attached[disturbance.engine % len(attached)] if attached else None
            if disturbance.kind == "attach":
                self.attach(1)
            elif disturbance.kind == "kill" and chosen:
                chosen.is_attached = False
                chosen.die()
            elif disturbance.kind == "detach" and len(attached) > 1 and chosen:
                chosen.is_attached, chosen.detached = False, asyncio.get_running_loop().time()
                self.running = {run: lane for run, lane in self.running.items() if run not in chosen.attempts}
                self.attach(0)
            elif disturbance.kind == "abort" and chosen:
                await SimulatedEngine.abort(chosen, sorted(chosen.attempts)[:1])
            elif disturbance.kind == "pause" and not self.is_updating:
                self.scheduler.suspend()
                with self.working():
                    await asyncio.sleep(1.0)
                if not self.is_updating:
                    await self.scheduler.resume(self.version)

    def _next(self, what: str, values: Sequence[T], at: int | None = None) -> T:
        if at is None:
            at = self.drawn[what]
            self.drawn[what] += 1
        return values[at % len(values)]

    # What must not happen.

    def require(self, condition: bool, otherwise: str) -> None:
        if not condition:
            self.broken.append(otherwise)

    @contextmanager
    def working(self) -> Iterator[None]:
        now = asyncio.get_running_loop().time
        if self.idle_since is not None and self.at_work == 0:
            self.require(now() - self.idle_since < 1e-6, "a batch is collected, and nothing is done for it")
        self.at_work += 1
        try:
            yield
        finally:
            self.at_work -= 1
            if self.at_work == 0 and self.idle_since is not None:
                self.idle_since = now()

    @contextmanager
    def _must_work(self) -> Iterator[None]:
        """Something is generated or graded all the time."""
        now = asyncio.get_running_loop().time
        self.idle_since = now()
        try:
            yield
            assert self.at_work or now() - self.idle_since < 1e-6, "the batch was complete before"
        finally:
            self.idle_since = None

    def check_live(self) -> None:
        """No more prompts are generated than the rules allow."""
        if self.schedule.abort_seconds:
            return
        for name, lane in self.rules.lanes.items():
            live = {run.split("#")[0] for run, its_lane in self.running.items() if its_lane == name}
            allowed = lane.ahead + (lane.groups + lane.extra if self.is_collecting else 0)
            self.require(len(live) <= allowed, f"{len(live)} prompts are generated, and {allowed} may be")

    def _check(self, batch: Batch, iteration: int) -> None:
        assert batch.iteration == iteration
        for name, lane in self.rules.lanes.items():
            assert sum(group.lane == name for group in batch.groups) == lane.groups
        prompts = [group.prompt.prompt_id for group in (*batch.groups, *batch.rejected)]
        assert len(set(prompts)) == len(prompts)
        assert self.used.isdisjoint(prompts)
        assert set(prompts) <= {prompt for handed in self.handed.values() for prompt in handed}
        complete = max(self.verdicts[group.prompt.prompt_id].seconds for group in batch.groups)
        before = [group for group in batch.rejected if self.verdicts[group.prompt.prompt_id].seconds < complete]
        for name, rejected in Counter(group.lane for group in before).items():
            assert rejected <= self.rules.lanes[name].reserve, "the budget is spent, and nobody said so"
        bound = math.ceil(self.schedule.async_ratio)
        for group in batch.groups:
            size = self._next("size", self.schedule.group_sizes, at=int(group.prompt.prompt_id.split("-")[1]))
            assert [response.index for response in group.responses] == list(range(size))
            assert any(group.rewards) or not self.schedule.filtering
            for response in group.responses:
                self._check_response(response, iteration - 1, bound)
        for group in batch.rejected:
            assert self.schedule.filtering
            assert not any(group.rewards)

    def _check_response(self, response: Response, trained: int, bound: int) -> None:
        generation = response.generation
        assert generation is not None and generation.finish_reason == "stop"
        request = f"{self.life}/{response.group.prompt.prompt_id}#{response.index}."
        assert generation.request_id.startswith(request)
        assert response.outcome is self.graded[generation.request_id]
        assert self.seen[generation.request_id] == 1
        start = self.started[generation.request_id]
        assert response.version == start
        assert trained - bound <= start <= trained
        versions = generation.policy_versions
        assert versions == sorted(versions) and all(start <= version <= trained for version in versions)
        if self.schedule.restart_interrupted:
            assert set(versions) == {start}

    def _check_spent(self, message: str) -> None:
        rejected = Counter(verdict.lane for verdict in self.verdicts.values() if not verdict.accepted)
        over = [name for name, lane in self.rules.lanes.items() if rejected[name] > lane.reserve]
        assert over, "the budget is not spent"
        assert any(f"rejected {rejected[name]} " in message for name in over)
        self.budget_spent = True

    def _check_accounts(self) -> None:
        """Every prompt is somewhere, once, and so is every token."""
        here = Counter(group.prompt.prompt_id for group in self.book.groups())
        newest = self.batches[-1] if self.batches else None
        if newest is not None and newest is self.book.taken:
            here.subtract(group.prompt.prompt_id for group in (*newest.groups, *newest.rejected))
        assert +here == Counter(
            prompt for handed in self.handed.values() for prompt in handed if prompt not in self.used
        )
        batches = self.batches[self.inherited :]
        tokens = sum(group.tokens for batch in batches for group in batch.groups)
        wasted = sum(batch.waste.total() for batch in batches) + self.book.waste.total()
        unfinished = sum(response.tokens for response in self.book.responses())
        assert self.returned == tokens + wasted + unfinished


class WatchedEngine(SimulatedEngine):
    """Tells the course what it is given, and what it gives back."""

    def __init__(self, course: Course, schedule: Schedule) -> None:
        super().__init__(lambda request: course._next("length", schedule.lengths), 1.0, schedule.crowding)
        self.course = course
        self.is_attached = True
        self.detached: float | None = None
        """When."""
        self.attempts: set[str] = set()

    async def generate(self, request: GenerationRequest) -> Generation:
        run, course = request.request_id, self.course
        now = asyncio.get_running_loop().time()
        course.require(self.detached is None or self.detached == now, "an engine was used that is detached")
        course.require(run not in course.started, "an attempt was started twice")
        course.started[run] = self._version
        if self.is_attached:
            course.running[run] = run.split("/")[1].split("-")[0]
        self.attempts.add(run)
        course.require(len(self.attempts) <= course.schedule.capacity, "an engine got more than its capacity")
        course.check_live()
        try:
            with course.working():
                generation = await super().generate(request)
        finally:
            self.attempts.discard(run)
            course.running.pop(run, None)
        course.returned += len(generation.response_ids)
        return generation

    async def abort(self, request_ids: Sequence[str]) -> None:
        if self.course.schedule.abort_seconds:
            with self.course.working():
                await asyncio.sleep(self.course.schedule.abort_seconds)
        await super().abort(request_ids)
        for run in request_ids:
            self.course.running.pop(run, None)
