"""How far a process is with its work, in a small file that others look at: `RUN/progress/<name>.json`.

A process that works for a run says once where its file is (`report_to`), and then what it does as it does it. The file
is replaced when it begins something, and at most every WRITE_SECONDS while it counts; by the thread that works, so the
file goes on changing only while the work does.
Where nobody has said where the file is, there is none.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from rlcore.machine import started

DIRECTORY = "progress"
WRITE_SECONDS = 0.5


class Step(BaseModel):
    """Something that a process is at."""

    model_config = ConfigDict(extra="forbid")

    name: str
    """What it does, or the unit of what it counts."""
    done: int | None = None
    total: int | None = None

    def __str__(self) -> str:
        if self.done is None:
            return self.name
        return f"{self.done}/{self.total} {self.name}" if self.total is not None else f"{self.done} {self.name}"


class Progress(BaseModel):
    """What a process is at."""

    model_config = ConfigDict(extra="forbid")

    host: str
    pid: int
    created: float
    """`rlcore.machine.started`: with the pid it tells the process from a later one of the same number."""
    beats: int = 0
    """Grows with everything that the process does."""
    steps: list[Step] = []
    """The outermost first; none while the process waits for work."""

    @classmethod
    def here(cls) -> Progress:
        return cls(host=socket.gethostname(), pid=os.getpid(), created=started(os.getpid()))

    @property
    def counted(self) -> str:
        """The steps that are counted: `1/4 optimizer steps, 3/8 micro-batches`."""
        return ", ".join(str(step) for step in self.steps if step.done is not None)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, at {', '.join(map(str, self.steps)) or 'nothing'}"


class _Reporter:
    """What this process is at, and the file that says so."""

    def __init__(self) -> None:
        self.file: Path | None = None
        self.progress: Progress | None = None
        self.next_write = 0.0

    def report_to(self, file: Path | None) -> None:
        self.file = file
        if file is not None:
            self.progress = Progress.here()
            file.parent.mkdir(parents=True, exist_ok=True)
            self.write()

    def beat(self) -> None:
        if self.file is not None and self.progress is not None:
            self.progress.beats += 1
            if time.monotonic() >= self.next_write:
                self.write()

    def write(self) -> None:
        if self.file is None or self.progress is None:
            return
        self.next_write = time.monotonic() + WRITE_SECONDS
        written = self.file.with_name(f".{self.file.name}")
        # On a disk that is full the work goes on: whoever writes its results says what is wrong.
        with contextlib.suppress(OSError):
            written.write_text(self.progress.model_dump_json())
            written.replace(self.file)

    @contextmanager
    def at(self, step: Step) -> Iterator[Step]:
        if self.progress is None:
            yield step
            return
        steps = self.progress.steps
        steps.append(step)
        self.progress.beats += 1
        self.write()
        try:
            yield step
        finally:
            steps[:] = [other for other in steps if other is not step]
            self.progress.beats += 1
            # What others see last of a process that waits for work is that it does.
            if not steps:
                self.write()


_own = _Reporter()


def progress_file(run_directory: Path, name: str) -> Path:
    return run_directory / DIRECTORY / f"{name}.json"


def report_to(file: Path | None) -> None:
    """This process's progress goes to that file from now on; to none with None."""
    _own.report_to(file)


def beat() -> None:
    """Something is done that nobody counts."""
    _own.beat()


@contextmanager
def doing(name: str) -> Iterator[None]:
    """This process is at that for as long as the block lasts."""
    with _own.at(Step(name=name)):
        yield


@contextmanager
def counting(unit: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """This process counts in the block; yields what to call with how many are done so far."""
    with _own.at(Step(name=unit, done=0, total=total)) as step:

        def done(number: int) -> None:
            if number != step.done:
                step.done = number
                _own.beat()

        yield done


def read_progress(file: Path) -> Progress | None:
    """What a process last said; None if it has not said anything yet."""
    try:
        return Progress.model_validate_json(file.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


class Sight:
    """Looks at the progress of some processes of a run, and knows for how long nothing moved."""

    def __init__(self, run_directory: Path, names: Collection[str]) -> None:
        self._directory = run_directory
        self.last: dict[str, Progress | None] = {name: self._read(name) for name in names}
        """What each said at the last look."""
        self._moved = time.monotonic()

    def look(self) -> bool:
        """Whether any of them moved since the last look."""
        now = {name: self._read(name) for name in self.last}
        moved = now != self.last
        if moved:
            self.last, self._moved = now, time.monotonic()
        return moved

    def watch(self, names: Collection[str]) -> None:
        """From now on only those of them."""
        self.last = {name: progress for name, progress in self.last.items() if name in names}

    @property
    def silent_seconds(self) -> float:
        """Since one of them moved; since the first look, if none has."""
        return time.monotonic() - self._moved

    def _read(self, name: str) -> Progress | None:
        return read_progress(progress_file(self._directory, name))
