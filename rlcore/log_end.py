"""The end of a log: what a process that died wrote last."""

from __future__ import annotations

from collections import deque
from pathlib import Path


def last_lines(path: str | Path, count: int = 20) -> str:
    """The last lines of a text file, whatever its encoding."""
    with open(path, errors="replace") as file:
        return "".join(deque(file, maxlen=count)).rstrip("\n")
