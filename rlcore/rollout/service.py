"""The scheduler of a run: prompts come, batches go, and neither is lost when a process dies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import polars as pl

from rlcore.config import Config
from rlcore.generation.interface import Generation
from rlcore.progress import WRITE_SECONDS, counting
from rlcore.rewards.interface import Outcome
from rlcore.rollout.batches import prompts_of, rollouts_of
from rlcore.rollout.book import Book
from rlcore.rollout.filter import filter_of
from rlcore.rollout.fleet import Engine
from rlcore.rollout.groups import Batch, Group, Prompt, Response
from rlcore.rollout.journal import Journal, recall
from rlcore.rollout.rules import ALL, rules_of
from rlcore.rollout.schedule import schedule_of, write_schedule
from rlcore.rollout.scheduler import Grade, RolloutScheduler
from rlcore.store import RunStore


class RolloutService:
    """All methods are to be called on one event loop."""

    def __init__(self, config: Config, store: RunStore) -> None:
        self._config = config
        self._store = store
        self._rules = rules_of(config)
        self._accepts = filter_of(config.rollout.filter)
        self._graded_under = config.digest("rewards")
        self._journal = Journal(store, config.digest("model", "rollout", "rewards", "algorithm.adv_estimator"))
        self._grade: Grade | None = None
        self._scheduler: RolloutScheduler | None = None
        self._handed_over = 0
        """The newest iteration whose prompts were handed over."""
        self._recorded = 0
        """The newest iteration whose batch is in the journal."""

    async def collect(
        self, iteration: int, prompts: pl.DataFrame, engines: Mapping[str, Engine], grade: Grade
    ) -> pl.DataFrame:
        """The iteration's batch, a RolloutBatch.

        Called again it goes on, and once the batch is complete it returns the same one. Cancelled, it stops generating.

        Args:
            prompts: what the iteration hands over, a PromptBatch.
            engines: those that are there, with the weights of version iteration − 1.

        Raises:
            as `rlcore.rollout.scheduler.RolloutScheduler.collect`.
            StoreError: the journal cannot be read or written.
        """
        self._grade = grade
        scheduler = self._scheduler_for(iteration, prompts)
        asked = scheduler.timeline.now()
        if scheduler.book.iteration < iteration:
            scheduler.suspend()
            scheduler.attach(engines, self._config.hardware.max_num_seqs)
            await scheduler.resume(iteration - 1)
        with self._progress(scheduler.book):
            try:
                batch = await scheduler.collect(iteration)
            except asyncio.CancelledError:
                # Nobody waits for it any more, as where its flow run was cancelled.
                await scheduler.halt()
                raise
        if self._recorded < iteration:
            self._record(scheduler, batch, asked)
        return rollouts_of(batch.groups, self._graded_under)

    async def suspend(self) -> None:
        """Start nothing until `resume`: the weights are about to change."""
        if self._scheduler is not None:
            self._scheduler.suspend()

    async def resume(self, version: int) -> None:
        """The engines have the weights of that version."""
        if self._scheduler is not None:
            await self._scheduler.resume(version)

    def close(self) -> None:
        """Give up what runs."""
        if self._scheduler is not None:
            self._scheduler.close()
            self._scheduler = None

    def _scheduler_for(self, iteration: int, prompts: pl.DataFrame) -> RolloutScheduler:
        """The one there is, if the iteration is its newest or comes next; else one made from the journal."""
        there = self._scheduler
        if there is not None and iteration in (there.book.iteration, there.book.iteration + 1):
            if self._handed_over < iteration:
                self._hand_over(there.book, prompts)
                self._handed_over = iteration
            return there
        self.close()
        self._scheduler = RolloutScheduler(self._restored(iteration, prompts), self._graded_by, seen=self._seen)
        self._handed_over = iteration
        return self._scheduler

    def _restored(self, iteration: int, prompts: pl.DataFrame) -> Book:
        """The book of a scheduler that is gone, with all that was graded when it went."""
        book = self._journal.restore(iteration, self._rules, self._accepts)
        self._hand_over(book, prompts)
        graded, taken = self._journal.since(iteration)
        if taken is not None:
            graded |= self._journal.since(iteration + 1)[0]
        for group in list(book.groups()):
            recall(book, group, graded)
        if taken is not None:
            book.advance(iteration - 1)
            book.begin(iteration)
            book.take(set(taken))
        self._recorded = iteration - 1
        return book

    def _hand_over(self, book: Book, prompts: pl.DataFrame) -> list[Group]:
        quotas = self._config.rollout.domain_quotas
        return [
            book.hand_over(prompt.domain if quotas else ALL, prompt, requests)
            for prompt, requests in prompts_of(prompts, self._config)
        ]

    async def _graded_by(self, prompt: Prompt, generation: Generation) -> Outcome:
        assert self._grade is not None
        return await self._grade(prompt, generation)

    def _seen(self, response: Response) -> None:
        assert self._scheduler is not None
        self._journal.graded(self._scheduler.book.iteration + 1, response)

    def _record(self, scheduler: RolloutScheduler, batch: Batch, asked: float) -> None:
        """What a scheduler that is made anew needs to return the same batch, and to go on after it."""
        iteration = batch.iteration
        self._journal.taken(iteration, [group.prompt.prompt_id for group in batch.groups])
        self._journal.begin(iteration + 1, scheduler.book)
        # The batch before is in the ledger: its stage came before the one that asked for this.
        self._journal.retire(iteration - 1)
        write_schedule(self._store, schedule_of(batch, scheduler.timeline.since_last(), asked))
        self._recorded = iteration

    @contextmanager
    def _progress(self, book: Book) -> Iterator[None]:
        """Report how many responses of the batch are graded."""
        size = sum(lane.groups for lane in self._rules.lanes.values())

        async def count() -> None:
            with counting("prompts", size) as prompts, counting("responses") as responses:
                while True:
                    graded = [response for response in book.responses() if response.outcome is not None]
                    prompts(book.complete())
                    responses(len(graded))
                    await asyncio.sleep(WRITE_SECONDS)

        counter = asyncio.create_task(count())
        try:
            yield
        finally:
            counter.cancel()
