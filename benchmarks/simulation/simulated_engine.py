"""An engine that takes time and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rlcore.generation.interface import EngineDied, FinishReason, Generation, GenerationRequest

ROUNDING = 1e-6
"""Steps by which the clock may miss a response's last one."""


@dataclass(eq=False)
class _Running:
    """A response that is decoded."""

    request: GenerationRequest
    since: float
    """Unit: steps of the engine, as `ends`."""
    ends: float
    started: float
    """Seconds."""
    versions: list[tuple[float, int]]
    """From which step on, which version of the weights."""
    done: asyncio.Future[FinishReason] = field(repr=False)


class SimulatedEngine:
    """Decodes in steps: each adds a token, of value 0, to every response that is under way.

    A step reads the weights once, and the cache of every response: it takes a set time, and more for each response.

    Args:
        length: response tokens of a request.
        token_seconds: of a step with no response in it.
        token_seconds_each: what every response adds to that.
    """

    def __init__(
        self, length: Callable[[GenerationRequest], int], token_seconds: float, token_seconds_each: float = 0.0
    ) -> None:
        self._length = length
        self._token_seconds = token_seconds
        self._token_seconds_each = token_seconds_each
        self._version = 0
        self._steps = 0.0
        self._looked = 0.0
        """When `_steps` was that, seconds."""
        self._running: dict[str, _Running] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_dead = False

    async def generate(self, request: GenerationRequest) -> Generation:
        if self._is_dead:
            raise EngineDied("the simulated engine is dead")
        loop = asyncio.get_running_loop()
        self._catch_up()
        length, since = self._length(request), self._steps
        running = _Running(
            request, since, since + length, loop.time(), [(since, self._version)], done=loop.create_future()
        )
        self._running[request.request_id] = running
        self._set_timer()
        try:
            reason = await running.done
        finally:
            if request.request_id in self._running:
                self._catch_up()
                del self._running[request.request_id]
                self._set_timer()
        tokens = min(length, int(running.ends - since + ROUNDING))
        return Generation(
            request_id=request.request_id,
            response_ids=[0] * tokens,
            logprobs=[0.0] * tokens,
            policy_versions=_versions(running, tokens),
            finish_reason=reason,
            text="",
            seconds=loop.time() - running.started,
        )

    async def abort(self, request_ids: Sequence[str]) -> None:
        if self._is_dead:
            raise EngineDied("the simulated engine is dead")
        self._catch_up()
        for request_id in request_ids:
            if running := self._running.pop(request_id, None):
                running.ends = min(running.ends, self._steps)
                _finish(running, "abort")
        self._set_timer()

    def load(self, version: int) -> None:
        """Weights of that version from now on, for requests that run too."""
        self._catch_up()
        self._version = version
        for running in self._running.values():
            running.versions.append((self._steps, version))

    def die(self) -> None:
        """End all requests with EngineDied, and those that come."""
        self._is_dead = True
        for running in self._running.values():
            if not running.done.done():
                running.done.set_exception(EngineDied("the simulated engine died"))
        self._running.clear()
        self._set_timer()

    def _step_seconds(self) -> float:
        return self._token_seconds + self._token_seconds_each * len(self._running)

    def _catch_up(self) -> None:
        """Count the steps since the last look. To be called before `_running` changes."""
        now = asyncio.get_running_loop().time()
        if self._running:
            self._steps += (now - self._looked) / self._step_seconds()
        self._looked = now

    def _set_timer(self) -> None:
        """For the next response that ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._running:
            ends = min(running.ends for running in self._running.values())
            wait = max(0.0, ends - self._steps) * self._step_seconds()
            self._timer = asyncio.get_running_loop().call_later(wait, self._end)

    def _end(self) -> None:
        self._timer = None
        self._catch_up()
        for request_id, running in list(self._running.items()):
            if running.ends <= self._steps + ROUNDING:
                del self._running[request_id]
                _finish(running, "stop")
        self._set_timer()


def _finish(running: _Running, reason: FinishReason) -> None:
    if not running.done.done():
        running.done.set_result(reason)


def _versions(running: _Running, tokens: int) -> list[int]:
    """Of every token: of the weights when its step began."""
    versions: list[int] = []
    ends = [since for since, _ in running.versions[1:]] + [float("inf")]
    for (_, version), end in zip(running.versions, ends, strict=True):
        upto = tokens if end == float("inf") else min(tokens, int(end - running.since + 1 - ROUNDING))
        versions += [version] * (upto - len(versions))
    return versions
