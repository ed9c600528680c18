"""The scheduler of rollouts: keeps engines busy with responses, and collects batches of those that were graded.

Every response is a request of its own, on whichever engine has least to do, and is graded the moment it ends. What may
be started, kept and trained on are the rules of `rlcore.rollout.book`. The same code serves one engine and many, and
synchronous training (α = 0) and asynchronous: with α > 0 it goes on between batches, while the trainer works.

    collect(1) ─► train ─► suspend ─► weights to the engines ─► resume(1) ─► collect(2) ─► …
                    └── up to ⌊α·B⌋ prompts go on ──┘

All methods are to be called on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any

from rlcore.generation.interface import EngineDied, Generation, GenerationRequest
from rlcore.rewards.interface import Outcome
from rlcore.rollout.book import Book
from rlcore.rollout.fleet import Engine, Fleet, Member
from rlcore.rollout.groups import Batch, Prompt, Response
from rlcore.rollout.timeline import Timeline

Grade = Callable[[Prompt, Generation], Awaitable[Outcome]]


class StaleEngine(RuntimeError):
    """An engine sampled under older weights than it should have."""


class RolloutScheduler:
    """Runs the responses of a book on engines."""

    def __init__(self, book: Book, grade: Grade, *, seen: Callable[[Response], None] = lambda response: None) -> None:
        """
        Args:
            grade: says what a response is worth.
            seen: told of every response that was generated and graded.
        """
        self.book = book
        self.fleet = Fleet()
        self.timeline = Timeline()
        self._grade = grade
        self._seen = seen
        self._suspended = False
        self._failure: BaseException | None = None
        self._death: EngineDied | None = None
        """Of an engine, the latest."""
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._grading: set[tuple[Response, int]] = set()
        """Responses, and which attempt."""

    def attach(self, engines: Mapping[str, Engine], capacity: int) -> None:
        """These engines are there, and hold the weights of the book's version. Others get nothing more.

        Args:
            capacity: requests that each gets at once.
        """
        self.fleet.attach(engines, capacity)
        self._pump()

    async def collect(self, iteration: int) -> Batch:
        """The iteration's batch, once enough responses are graded; that of the newest iteration again.

        What is not done when this raises or is cancelled goes on, and the next call collects it.

        Raises:
            OutOfOrder, RejectionBudgetSpent: as `rlcore.rollout.book.Book.begin` and `graded`.
            EngineDied: no engine is left.
            StaleEngine: an engine has not the weights that it should have.
            Exception: what a grader raised.
        """
        book = self.book
        if book.taken is not None and book.taken.iteration == iteration:
            return book.taken
        self._failure = None
        book.begin(iteration)
        for response in book.responses():
            if response.generation is not None and response.outcome is None:
                self._spawn(self._graded(response, response.attempt))
        self._pump()
        while not book.is_ready():
            if self._failure is not None:
                raise self._failure
            if not self.fleet.members:
                raise EngineDied(f"no engine is left: {self._death or 'none was attached'}")
            self._changed.clear()
            await self._changed.wait()
        await self._abort(book.take())
        self._pump()
        assert book.taken is not None
        return book.taken

    def suspend(self) -> None:
        """Start nothing until `resume`. What runs goes on, and what ends is graded."""
        self._suspended = True

    async def resume(self, version: int) -> None:
        """All engines have the weights of that version: abort what is too old, and go on.

        Raises:
            OutOfOrder: they are older than those before.
        """
        await self._abort(self.book.advance(version))
        self._suspended = False
        self._pump()

    async def halt(self) -> None:
        """Abort what runs, and start nothing until `resume`: then it starts again."""
        self._suspended = True
        await self._abort(response.run_id for response in self.book.responses() if response.is_running)

    def _pump(self) -> None:
        """Start what may be started, as far as engines have room."""
        while not self._suspended and self._failure is None and (response := self.book.next_response()):
            member = self.fleet.choose(response.request)
            if member is None:
                break
            self.book.start(response)
            request = replace(response.request, request_id=response.run_id)
            self.fleet.began(member, request)
            self.timeline.began(member.name)
            self._spawn(self._generated(response, response.attempt, request, member))
        self.timeline.waiting(self.book.waiting)
        self._changed.set()

    async def _generated(self, response: Response, attempt: int, request: GenerationRequest, member: Member) -> None:
        generation: Generation | None = None
        try:
            # What was reset since it was chosen cannot be aborted: the engine has not heard of it.
            if response.attempt == attempt:
                generation = await member.engine.generate(request)
        except EngineDied as error:
            self._engine_died(member, error)
        except Exception as error:
            self._failure = error
        finally:
            complete = generation is not None and generation.finish_reason != "abort"
            tokens = len(generation.response_ids) if generation is not None else 0
            self.fleet.ended(member, request, tokens if complete else None)
            self.timeline.ended(member.name, tokens)
        if response.attempt != attempt:
            self.book.given_up(response, tokens)
        elif generation is None or not complete:
            self.book.lost(response, tokens)
        elif min(generation.policy_versions, default=self.book.version) < (response.version or 0):
            self._failure = StaleEngine(
                f"{member.name} sampled {response.request.request_id} under policy version "
                f"{min(generation.policy_versions)}, but was to have {response.version}"
            )
            self.book.lost(response, tokens)
        else:
            self.book.generated(response, generation)
            self._pump()
            await self._graded(response, attempt)
        self._pump()

    async def _graded(self, response: Response, attempt: int) -> None:
        grading = (response, attempt)
        # One that a cancelled collect left is still graded when the next asks for it.
        if response.attempt != attempt or response.outcome is not None or grading in self._grading:
            return
        assert response.generation is not None
        self._grading.add(grading)
        try:
            outcome = await self._grade(response.group.prompt, response.generation)
            if response.attempt == attempt:
                response.outcome = outcome
                self._seen(response)
                self.book.graded(response, outcome)
        except Exception as error:
            self._failure = error
        finally:
            self._grading.discard(grading)
        self._pump()

    def _engine_died(self, member: Member, error: EngineDied) -> None:
        self.fleet.remove(member)
        self._death = error

    async def _abort(self, run_ids: Iterable[str]) -> None:
        """Tell the engines to end those requests."""
        ended = set(run_ids)
        for member in list(self.fleet.members.values()):
            if running := ended & member.running.keys():
                try:
                    await member.engine.abort(sorted(running))
                except EngineDied as error:
                    self._engine_died(member, error)

    def close(self) -> None:
        """Nothing that runs is waited for any more."""
        for task in self._tasks:
            task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        # The event loop alone would let go of it.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
