"""An engine that takes time and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from rlcore.generation.interface import EngineDied, Generation, GenerationRequest


class SimulatedEngine:
    """Generates tokens of value 0: each takes a set time, however many responses are generated at once.

    Args:
        length: response tokens of a request.
        token_seconds: between two tokens of a response.
    """

    def __init__(self, length: Callable[[GenerationRequest], int], token_seconds: float) -> None:
        self._length = length
        self._token_seconds = token_seconds
        self._version = 0
        self._ended: dict[str, asyncio.Event] = {}
        self._versions: dict[str, list[int]] = {}
        self._is_dead = False

    async def generate(self, request: GenerationRequest) -> Generation:
        if self._is_dead:
            raise EngineDied("the simulated engine is dead")
        ended = self._ended[request.request_id] = asyncio.Event()
        length, loop = self._length(request), asyncio.get_running_loop()
        started, version = loop.time(), self._version
        try:
            async with asyncio.timeout(length * self._token_seconds):
                await ended.wait()
        except TimeoutError:
            pass
        finally:
            del self._ended[request.request_id]
        if self._is_dead:
            raise EngineDied("the simulated engine died")
        done = min(length, int((loop.time() - started) / self._token_seconds + 1e-9)) if ended.is_set() else length
        return Generation(
            request_id=request.request_id,
            response_ids=[0] * done,
            logprobs=[0.0] * done,
            policy_versions=[version] * done,
            finish_reason="abort" if ended.is_set() else "stop",
            text="",
            seconds=loop.time() - started,
        )

    async def abort(self, request_ids: Sequence[str]) -> None:
        if self._is_dead:
            raise EngineDied("the simulated engine is dead")
        for request_id in request_ids:
            if request_id in self._ended:
                self._ended[request_id].set()

    def load(self, version: int) -> None:
        """Weights of that version from now on, for requests that come; those that run keep their version's tokens."""
        self._version = version

    def die(self) -> None:
        """End all requests with EngineDied, and those that come."""
        self._is_dead = True
        for ended in self._ended.values():
            ended.set()
