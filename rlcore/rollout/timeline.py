"""When engines worked, and how much waited for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class EngineTimes:
    """One engine's time since the last report."""

    running: int = 0
    since: float = 0.0
    """When it began to have something to do."""
    spans: list[tuple[float, float]] = field(default_factory=list)
    """Unix times, seconds, from having something to do to having nothing."""
    tokens: int = 0
    """Of the responses that ended."""


MERGED_SECONDS = 0.05
"""Two spans with less between them are one."""
QUEUE_SECONDS = 0.1
"""The queue is looked at so often."""


class Timeline:
    """What the scheduler tells it of, until it is asked."""

    def __init__(self) -> None:
        self.engines: dict[str, EngineTimes] = {}
        self.queue: list[tuple[float, int]] = []
        """Unix time, and how many responses waited for an engine."""
        self._origin: float | None = None

    def began(self, engine: str) -> None:
        """It got a request."""
        times = self.engines.setdefault(engine, EngineTimes())
        if not times.running:
            times.since = self.now()
        times.running += 1

    def ended(self, engine: str, tokens: int) -> None:
        """A request of its has ended."""
        times = self.engines[engine]
        times.running -= 1
        times.tokens += tokens
        if not times.running:
            _append(times.spans, times.since, self.now())

    def waiting(self, responses: Callable[[], int]) -> None:
        """So many wait now; asked only when it is time to look."""
        now = self.now()
        if not self.queue or now - self.queue[-1][0] >= QUEUE_SECONDS:
            self.queue.append((now, responses()))

    def report(self) -> Timeline:
        """What there was since the last report."""
        now, reported = self.now(), Timeline()
        reported._origin = self._origin
        reported.queue, self.queue = self.queue, []
        for name, times in self.engines.items():
            spans = list(times.spans)
            if times.running:
                _append(spans, times.since, now)
            reported.engines[name] = EngineTimes(spans=spans, tokens=times.tokens)
            times.spans, times.tokens, times.since = [], 0, now
        return reported

    def now(self) -> float:
        """Unix time, by the event loop's clock."""
        clock = asyncio.get_running_loop().time()
        if self._origin is None:
            self._origin = time.time() - clock
        return self._origin + clock


def _append(spans: list[tuple[float, float]], start: float, end: float) -> None:
    if spans and start - spans[-1][1] < MERGED_SECONDS:
        spans[-1] = (spans[-1][0], end)
    else:
        spans.append((start, end))
