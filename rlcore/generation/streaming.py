"""The vLLM engine for a caller in another process: requests go in as they come, generations come out as they end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rlcore.generation.interface import Generation, GenerationRequest
from rlcore.generation.vllm import VLLMGenerator

Ended = tuple[str, Generation | Exception]
"""The request's id, and its generation or what it failed with."""


class Stream:
    """The requests of one caller."""

    def __init__(self, caller: str) -> None:
        self.caller = caller
        self.running: dict[str, asyncio.Task[None]] = {}
        self.ended: asyncio.Queue[Ended] = asyncio.Queue()
        self.done: list[Generation] = []
        """Since it last had nothing running."""
        self.counter: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """End all its requests."""
        for task in self.running.values():
            task.cancel()


class StreamingGenerator(VLLMGenerator):
    """A VLLMGenerator with a stream for one caller. A new caller ends the requests of the one before."""

    _stream: Stream | None = None

    async def submit(self, caller: str, requests: Sequence[GenerationRequest]) -> None:
        """Generate them; `finished` has what came of each.

        Args:
            caller: who asks, by a name that nobody else has.
        """
        stream = self._stream_of(caller)
        for request in requests:
            stream.running[request.request_id] = asyncio.create_task(self._generate(stream, request))
        if stream.counter is None and requests:
            stream.counter = asyncio.create_task(self._count(stream.running.keys(), stream.done))

    async def finished(self, caller: str) -> list[Ended]:
        """What has ended since this was last asked, once anything has."""
        queue = self._stream_of(caller).ended
        ended = [await queue.get()]
        while not queue.empty():
            ended.append(queue.get_nowait())
        return ended

    def _stream_of(self, caller: str) -> Stream:
        if self._stream is None or self._stream.caller != caller:
            if self._stream is not None:
                self._stream.cancel()
            self._stream = Stream(caller)
        return self._stream

    async def _generate(self, stream: Stream, request: GenerationRequest) -> None:
        try:
            generation = await self.generate_one(request)
            stream.done.append(generation)
            stream.ended.put_nowait((request.request_id, generation))
        except Exception as error:
            stream.ended.put_nowait((request.request_id, error))
        finally:
            del stream.running[request.request_id]
            if not stream.running and stream.counter is not None:
                stream.counter.cancel()
                stream.counter = None
                stream.done.clear()
