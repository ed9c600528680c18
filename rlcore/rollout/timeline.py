"""When engines worked, and how much waited for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

MERGED_SECONDS = 0.05
"""Two spans with less between them are one."""
QUEUE_SECONDS = 0.1
"""The queue is looked at so often."""


@dataclass
class EngineTimes:
    """One engine's time."""

    running: int = 0
    since: float = 0.0
    """When it began to have something to do."""
    spans: list[tuple[float, float]] = field(default_factory=list)
    """Unix times, seconds, from having something to do to having nothing."""
    tokens: int = 0
    """Of the responses that ended."""

    def close(self, now: float) -> None:
        """Its span ends now."""
        if self.spans and self.since - self.spans[-1][1] < MERGED_SECONDS:
            self.since = self.spans.pop()[0]
        self.spans.append((self.since, now))


@dataclass
class Times:
    """What there was between two moments, Unix time in seconds."""

    started: float
    finished: float
    engines: dict[str, EngineTimes]
    queue: list[tuple[float, int]]
    """A moment, and how many responses waited for an engine."""


class Timeline:
    """Is told what happens, and asked once in a while. To be used where an event loop runs, whose clock it goes by."""

    def __init__(self) -> None:
        self._unix_time = time.time() - asyncio.get_running_loop().time()
        self._started = self.now()
        self._engines: dict[str, EngineTimes] = {}
        self._queue: list[tuple[float, int]] = []

    def began(self, engine: str) -> None:
        """It got a request."""
        times = self._engines.setdefault(engine, EngineTimes())
        if not times.running:
            times.since = self.now()
        times.running += 1

    def ended(self, engine: str, tokens: int) -> None:
        """A request of its has ended, with so many tokens."""
        times = self._engines[engine]
        times.running -= 1
        times.tokens += tokens
        if not times.running:
            times.close(self.now())

    def waiting(self, responses: Callable[[], int]) -> None:
        """So many wait now; asked only when it is time to look."""
        now = self.now()
        if not self._queue or now - self._queue[-1][0] >= QUEUE_SECONDS:
            self._queue.append((now, responses()))

    def since_last(self) -> Times:
        """What there was since this was last asked."""
        times = Times(self._started, self.now(), self._engines, self._queue)
        self._started, self._queue, self._engines = times.finished, [], {}
        for name, engine in times.engines.items():
            if engine.running:
                engine.close(times.finished)
                self._engines[name] = EngineTimes(engine.running, since=times.finished)
        return times

    def now(self) -> float:
        """Unix time, seconds."""
        return self._unix_time + asyncio.get_running_loop().time()
