"""The scheduler of rollouts in a process of its own, with the engines and graders that it asks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import polars as pl
import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError

from rlcore.cluster.engine import EngineGroup, GradersHandle, ResidentHandle, together
from rlcore.cluster.residents import QUIET_THREADS, AsyncResident, get_or_create
from rlcore.cluster.waiting import Supervision
from rlcore.config import Config
from rlcore.generation.interface import EngineDied, Generation, GenerationRequest
from rlcore.progress import beat
from rlcore.rewards.interface import GradersDied, Outcome
from rlcore.rollout.batches import outcomes_of
from rlcore.rollout.groups import Prompt
from rlcore.rollout.service import RolloutService
from rlcore.store import RunStore


class RemoteEngine:
    """A StreamingGenerator in another process: an Engine of rlcore.rollout.fleet.

    Requests of the same moment travel in one call, and so do generations.
    """

    def __init__(self, name: str, actor: ActorHandle) -> None:
        self._name = name
        self._actor = actor
        self._caller = uuid4().hex
        self._outbox: list[GenerationRequest] = []
        self._running: dict[str, asyncio.Future[Generation]] = {}
        self._listener: asyncio.Task[None] | None = None

    async def generate(self, request: GenerationRequest) -> Generation:
        future = asyncio.get_running_loop().create_future()
        self._running[request.request_id] = future
        if not self._outbox:
            _spawn(self._send())
        self._outbox.append(request)
        generation: Generation = await future
        return generation

    async def abort(self, request_ids: Sequence[str]) -> None:
        await self._call("abort", list(request_ids))

    async def _send(self) -> None:
        requests, self._outbox = self._outbox, []
        try:
            await self._call("submit", self._caller, requests)
        except Exception as error:
            self._fail(error)
            return
        if self._listener is None or self._listener.done():
            self._listener = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        try:
            while self._running:
                for request_id, ended in await self._call("finished", self._caller):
                    future = self._running.pop(request_id, None)
                    if future is None:
                        continue
                    if isinstance(ended, Exception):
                        future.set_exception(ended)
                    else:
                        future.set_result(ended)
                beat()
        except Exception as error:
            self._fail(error)

    async def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return await self._actor.call.remote(method, *arguments)
        except RayActorError as error:
            raise EngineDied(f"the process of {self._name} died: {error}") from None

    def _fail(self, error: Exception) -> None:
        """No request that was sent will be answered."""
        running, self._running = self._running, {}
        for future in running.values():
            if not future.done():
                future.set_exception(error)


class RemoteGraders:
    """A RewardRouter in another process, given all responses at once that wait for it."""

    def __init__(self, actor: ActorHandle) -> None:
        self._actor = actor
        self._waiting: dict[str, tuple[dict[str, str], asyncio.Future[Outcome]]] = {}
        self._grading = False

    async def grade(self, prompt: Prompt, generation: Generation) -> Outcome:
        future = asyncio.get_running_loop().create_future()
        response = {
            "sample_id": generation.request_id,
            "domain": prompt.domain,
            "prompt_text": prompt.text,
            "response_text": generation.text,
            "ground_truth": prompt.ground_truth,
        }
        self._waiting[generation.request_id] = response, future
        if not self._grading:
            self._grading = True
            _spawn(self._grade_all())
        outcome: Outcome = await future
        return outcome

    async def _grade_all(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, {}
            try:
                responses = pl.DataFrame([response for response, _ in waiting.values()])
                outcomes = outcomes_of(await self._call(responses))
            except Exception as error:
                for _, future in waiting.values():
                    future.set_exception(error)
                continue
            for sample_id, (_, future) in waiting.items():
                future.set_result(outcomes[sample_id])
            beat()
        self._grading = False

    async def _call(self, responses: pl.DataFrame) -> pl.DataFrame:
        try:
            rewards: pl.DataFrame = await self._actor.call.remote("grade", responses)
        except RayActorError as error:
            raise GradersDied(f"the process of the graders died: {error}") from None
        return rewards


class SchedulerProcess(AsyncResident):
    """Holds a RolloutActor."""


class RolloutActor(RolloutService):
    """A RolloutService that is given actors."""

    def __init__(self, config: Config, url: str) -> None:
        super().__init__(config, RunStore(url))
        self._remotes: dict[ActorHandle, RemoteEngine] = {}

    async def collect_from(
        self, iteration: int, prompts: pl.DataFrame, engines: Mapping[str, ActorHandle], graders: ActorHandle
    ) -> pl.DataFrame:
        """As `collect`, from StreamingGenerators and a RewardRouter."""
        self._remotes = {
            actor: self._remotes.get(actor) or RemoteEngine(name, actor) for name, actor in engines.items()
        }
        return await self.collect(
            iteration,
            prompts,
            {name: self._remotes[actor] for name, actor in engines.items()},
            RemoteGraders(graders).grade,
        )


@dataclass(frozen=True)
class RolloutHandle:
    """The run's scheduler, called synchronously."""

    resident: ResidentHandle

    def collect(
        self, iteration: int, prompts: pl.DataFrame, engines: EngineGroup, graders: GradersHandle
    ) -> pl.DataFrame:
        """The iteration's batch, a RolloutBatch. The engines have the weights of version iteration − 1."""
        actors = {resident.name: resident.actor for resident in engines.residents}
        call = self.resident.begin("collect_from", iteration, ray.put(prompts), actors, graders.resident.actor)
        workers = [*engines.residents, graders.resident]
        rollouts: pl.DataFrame = together([call], "the collection of rollouts", self.resident, others=workers)[0]
        return rollouts

    def suspend(self) -> None:
        """Start nothing until `resume`."""
        self.resident.call("suspend")

    def resume(self, policy_version: int) -> None:
        """The engines have the weights of that version."""
        self.resident.call("resume", policy_version)


def rollouts(config: Config, store: RunStore) -> RolloutHandle:
    """The run's scheduler; made where it is missing, or was made under other settings."""
    name = "scheduler"
    identity = config.digest("model", "data", "rollout", "rewards", "algorithm.adv_estimator", "hardware.max_num_seqs")
    arguments = ("rlcore.cluster.rollouts", "RolloutActor", config, store.url)
    actor = get_or_create(
        SchedulerProcess, name, store.run_id, store.directory, arguments, QUIET_THREADS, identity=identity
    )
    return RolloutHandle(ResidentHandle(name, actor, Supervision(store.directory, config.deadlines)))


_background: set[asyncio.Task[None]] = set()


def _spawn(work: Coroutine[Any, Any, None]) -> None:
    # The event loop alone would let go of the task.
    task = asyncio.create_task(work)
    _background.add(task)
    task.add_done_callback(_background.discard)
