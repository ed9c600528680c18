"""Rollouts and training in virtual time: with the scheduler, and the ways it is compared with."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.simulation.simulated_engine import SimulatedEngine
from rlcore.generation.interface import Generation, GenerationRequest
from rlcore.rewards.interface import Outcome
from rlcore.rollout.book import Book
from rlcore.rollout.groups import Group, Prompt
from rlcore.rollout.rules import Lane, Rules
from rlcore.rollout.scheduler import RolloutScheduler

Lengths = Callable[[random.Random], float]
"""Draws the tokens of a response."""


@dataclass(frozen=True)
class Hardware:
    """What one GPU does as an engine."""

    slots: int
    """Responses at once."""
    token_seconds: float
    token_seconds_each: float
    longest: int
    """Tokens that a response is cut at."""


@dataclass(frozen=True)
class Workload:
    prompts: int
    """Of a batch, of those that the filter accepts."""
    responses: int
    """To each."""
    lengths: Lengths
    rejected: float = 0.0
    """Share of prompts that the filter rejects."""
    grading_seconds: float = 0.0
    seed: int = 0

    def is_rejected(self, prompt_id: str) -> bool:
        return random.Random(f"{self.seed}/{prompt_id}").random() < self.rejected

    @property
    def size(self) -> int:
        return self.prompts * self.responses


@dataclass
class Seconds:
    """Of responses, as they were generated."""

    of_responses: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return sum(self.of_responses) / len(self.of_responses)

    @property
    def most(self) -> float:
        return max(self.of_responses)


class Rollouts:
    """A workload on engines."""

    def __init__(self, workload: Workload, hardware: Hardware, engines: int) -> None:
        self.workload = workload
        self.hardware = hardware
        self.engines = [
            SimulatedEngine(self._length, hardware.token_seconds, hardware.token_seconds_each) for _ in range(engines)
        ]
        self.seconds = Seconds()
        self._prompts = self._new_prompts()

    def _length(self, request: GenerationRequest) -> int:
        """Drawn anew for every attempt, from its name; the first one's is the same without the scheduler."""
        name = request.request_id.removesuffix(".1")
        drawn = self.workload.lengths(random.Random(f"{self.workload.seed}/{name}"))
        return max(1, min(self.hardware.longest, round(drawn)))

    def _new_prompts(self) -> Iterator[tuple[Prompt, list[GenerationRequest]]]:
        number = 0
        while True:
            prompt_id, tokens = f"p{number}", (number,)
            requests = [
                GenerationRequest(f"{prompt_id}#{index}", tokens, self.hardware.longest, 1.0, 0)
                for index in range(self.workload.responses)
            ]
            yield Prompt(prompt_id, "", tokens, "", ""), requests
            number += 1

    # With the scheduler.

    def scheduler(self, async_ratio: float = 0.0, extra: int = 0, reserve: int = 0) -> RolloutScheduler:
        lane = Lane(self.workload.prompts, int(async_ratio * self.workload.prompts), extra, reserve)
        scheduler = RolloutScheduler(Book(Rules({"all": lane}, async_ratio), self._accepts), self._grade)
        engines = {f"engine{number}": engine for number, engine in enumerate(self.engines)}
        scheduler.attach(engines, self.hardware.slots)
        return scheduler

    async def collect(self, scheduler: RolloutScheduler, iteration: int) -> None:
        """The iteration's batch."""
        book = scheduler.book
        for _ in range(book.rules.lanes["all"].population - book.remaining()["all"]):
            book.hand_over("all", *next(self._prompts))
        await scheduler.collect(iteration)
        scheduler.timeline.since_last()

    async def update(self, scheduler: RolloutScheduler, version: int) -> None:
        scheduler.suspend()
        for engine in self.engines:
            engine.load(version)
        await scheduler.resume(version)

    def _accepts(self, group: Group) -> bool:
        return not self.workload.is_rejected(group.prompt.prompt_id)

    async def _grade(self, prompt: Prompt, generation: Generation) -> Outcome:
        self.seconds.of_responses.append(generation.seconds)
        if self.workload.grading_seconds:
            await asyncio.sleep(self.workload.grading_seconds)
        return Outcome("scored", 1.0, {}, "", self.workload.grading_seconds)

    # Without it.

    async def batch_rollouts(self) -> None:
        """Whole batches one after the other, each graded when all of it is generated, until enough is accepted.

        A batch's responses are dealt out to the engines evenly before any is started.
        """
        accepted = 0
        while accepted < self.workload.prompts:
            batch = [next(self._prompts) for _ in range(self.workload.prompts)]
            requests = [request for _, requests in batch for request in requests]
            shares = [requests[number :: len(self.engines)] for number in range(len(self.engines))]
            await asyncio.gather(*map(self._generate_all, self.engines, shares))
            if self.workload.grading_seconds:
                await asyncio.sleep(self.workload.grading_seconds)
            accepted += sum(not self.workload.is_rejected(prompt.prompt_id) for prompt, _ in batch)

    async def bound_rollouts(self) -> None:
        """A batch in which all candidates of a prompt are one request to one engine.

        A prompt waits for an engine that has room for all its candidates, and gives it back when the last is done.
        """
        room = max(1, self.hardware.slots // self.workload.responses)
        waiting = [next(self._prompts)[1] for _ in range(self.workload.prompts)][::-1]

        async def work(engine: SimulatedEngine) -> None:
            while waiting:
                await self._generate_all(engine, waiting.pop())

        await asyncio.gather(*(work(engine) for _ in range(room) for engine in self.engines))

    async def _generate_all(self, engine: SimulatedEngine, requests: Sequence[GenerationRequest]) -> None:
        slots = asyncio.Semaphore(self.hardware.slots)

        async def generate(request: GenerationRequest) -> None:
            async with slots:
                generation = await engine.generate(request)
            self.seconds.of_responses.append(generation.seconds)

        await asyncio.gather(*map(generate, requests))


async def steps_with_scheduler(
    rollouts: Rollouts,
    steps: int,
    *,
    train_seconds: float = 0.0,
    async_ratio: float = 0.0,
    extra: int = 0,
    reserve: int = 0,
    warm_up: int = 0,
) -> float:
    """Mean seconds of a step: collect, train, update. At α = 0 rollouts and training take turns."""
    scheduler = rollouts.scheduler(async_ratio, extra, reserve)
    now, began = asyncio.get_running_loop().time, 0.0
    for iteration in range(1, warm_up + steps + 1):
        await rollouts.collect(scheduler, iteration)
        await asyncio.sleep(train_seconds)
        await rollouts.update(scheduler, iteration)
        if iteration == warm_up:
            began = now()
            rollouts.seconds.of_responses.clear()
    return (now() - began) / steps


async def steps_of(rollout: Callable[[], Awaitable[None]], steps: int) -> float:
    """Mean seconds of one, without the scheduler and without training."""
    for _ in range(steps):
        await rollout()
    return asyncio.get_running_loop().time() / steps
