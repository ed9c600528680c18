"""The program of one grader process: `python -m rlcore.rewards.worker FD GRADER…`.

Takes lists of tasks from the socket FD and answers each task with an outcome as soon as it is graded.
Imports no more than the graders need: a killed worker is replaced by one that starts from nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import resource
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from rlcore.rewards.interface import Outcome, Score, Task

MEMORY_BYTES = 4 << 30
"""Address space of a grader process: a response must not take the machine's memory."""
ORPHAN_SECONDS = 5.0
"""How much longer than its limit a grader may live if the router, which kills it at the limit, is gone."""
DETAIL_CHARACTERS = 500


def serve(connection: Connection, graders: list[str]) -> None:
    """Grade what comes until the other end is closed, which also the death of its process does."""
    grade = {name: importlib.import_module(f"rlcore.rewards.{name}").grade for name in graders}
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    connection.send(None)  # ready
    while True:
        tasks: list[Task] = connection.recv()
        for task in tasks:
            # A grader deep in C code does not see that the router died; the kernel's timer ends it.
            signal.setitimer(signal.ITIMER_REAL, task.timeout_seconds + ORPHAN_SECONDS)
            outcome = run(grade[task.grader], task)
            signal.setitimer(signal.ITIMER_REAL, 0)
            connection.send(outcome)


def run(grade: Callable[..., Score], task: Task) -> Outcome:
    """The task's outcome; an exception of the grader is one, too."""
    start = time.perf_counter()
    try:
        score = grade(task.response_text, task.ground_truth, **task.options)
    except Exception as error:
        detail = f"{type(error).__name__}: {error}"[:DETAIL_CHARACTERS]
        return Outcome("grader_error", None, {}, detail, time.perf_counter() - start)
    return Outcome("scored", score.reward, score.components, "", time.perf_counter() - start)


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    # Ctrl-C reaches the whole process group; the router decides when workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(EOFError, ConnectionError):
        serve(Connection(int(sys.argv[1])), sys.argv[2:])
