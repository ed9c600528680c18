"""Grader processes: kept warm, killed at a response's time limit, replaced when they die."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import wait

from rlcore.progress import counting
from rlcore.rewards.interface import Outcome, Task

logger = logging.getLogger(__name__)

TASKS_PER_MESSAGE = 16
START_SECONDS = 120.0
FAILED_STARTS = 3
"""So many workers in a row that end before they are ready are not an accident."""


class WorkerError(RuntimeError):
    """Grader processes cannot be started."""


class Worker:
    """One process and the tasks it was sent and has not answered, the first of them being graded."""

    def __init__(self, graders: Iterable[str]) -> None:
        self.connection, child = Pipe()
        # Not multiprocessing: its children import the caller's main module, which here may be anyone's.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rlcore.rewards.worker", str(child.fileno()), *sorted(graders)],
            pass_fds=[child.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
        )
        child.close()
        self.ready = False
        self.tasks: deque[int] = deque()
        self.deadline = time.monotonic() + START_SECONDS

    def kill(self) -> int:
        """End the process; its exit code, negative for a signal."""
        self.process.kill()
        self.connection.close()
        return self.process.wait()


class Batch:
    """The tasks of one call, and what became of them so far."""

    def __init__(self, tasks: Sequence[Task], at_once: Mapping[str, int]) -> None:
        """
        Args:
            at_once: by domain, how many workers it may have.
        """
        self.tasks = tasks
        self.at_once = at_once
        self.waiting: dict[str, deque[int]] = {}
        for index, task in enumerate(tasks):
            self.waiting.setdefault(task.domain, deque()).append(index)
        self.retried: set[int] = set()
        self.outcomes: dict[int, Outcome] = {}

    def next_domain(self, busy: Mapping[str, int]) -> str | None:
        """Of those that may have another worker, the one with the fewest.

        Args:
            busy: by domain, how many it has; of those that have any.
        """
        open_ = [name for name, left in self.waiting.items() if left and busy.get(name, 0) < self.at_once[name]]
        return min(open_, key=lambda name: busy.get(name, 0), default=None)

    def send(self, worker: Worker, domain: str) -> None:
        """Give the domain's next waiting tasks to an idle worker."""
        waiting = self.waiting[domain]
        worker.tasks.extend(waiting.popleft() for _ in range(min(TASKS_PER_MESSAGE, len(waiting))))
        self._start_clock(worker)
        # A worker that has just died is found by the end of its connection, where every dead one is.
        with contextlib.suppress(ConnectionError):
            worker.connection.send([self.tasks[index] for index in worker.tasks])

    def answered(self, worker: Worker, outcome: Outcome) -> None:
        self.outcomes[worker.tasks.popleft()] = outcome
        self._start_clock(worker)

    def timed_out(self, worker: Worker) -> None:
        """The task that the worker was at becomes a timeout; those behind it wait again."""
        index = worker.tasks.popleft()
        limit = self.tasks[index].timeout_seconds
        self.outcomes[index] = Outcome("timeout", None, {}, f"the grader was killed after {limit:g} s", limit)
        self._wait_again(worker)

    def died(self, worker: Worker, exit_code: int) -> None:
        """The task that the worker was at is tried once more; those behind it wait again."""
        index = worker.tasks[0]
        logger.warning("grader process %d died with exit code %d", worker.process.pid, exit_code)
        if index in self.retried:
            worker.tasks.popleft()
            detail = f"the grader process died twice, with exit code {exit_code} the second time"
            self.outcomes[index] = Outcome("infra_error", None, {}, detail, 0.0)
        self.retried.add(index)
        self._wait_again(worker)

    def domain_of(self, worker: Worker) -> str | None:
        """That of the tasks that it has."""
        return self.tasks[worker.tasks[0]].domain if worker.tasks else None

    def _wait_again(self, worker: Worker) -> None:
        for index in reversed(worker.tasks):
            self.waiting[self.tasks[index].domain].appendleft(index)

    def _start_clock(self, worker: Worker) -> None:
        limit = self.tasks[worker.tasks[0]].timeout_seconds if worker.tasks else math.inf
        worker.deadline = time.monotonic() + limit


class WorkerPool:
    """Runs tasks on a fixed number of grader processes, which start at once."""

    def __init__(self, graders: Iterable[str], processes: int) -> None:
        self._graders = frozenset(graders)
        self._processes = processes
        self._workers: list[Worker] = []
        self._failed_starts = 0
        self._start()

    def close(self) -> None:
        """End every process. Another run starts others."""
        for worker in self._workers:
            worker.kill()
        self._workers = []
        self._failed_starts = 0

    def run(self, tasks: Sequence[Task], at_once: Mapping[str, int]) -> list[Outcome]:
        """One outcome per task, in the order of the tasks.

        A task at its time limit is killed with its process and has the status `timeout`. A task whose
        process died otherwise is tried once more, then it is an `infra_error`. Tasks that were waiting
        in the same process go to another one.

        Args:
            at_once: by domain, how many processes it may have at the same time.

        Raises:
            WorkerError: processes end before they are ready. Another run starts others.
        """
        batch = Batch(tasks, at_once)
        try:
            self._start()
            with counting("gradings", len(tasks)) as done:
                while len(batch.outcomes) < len(tasks):
                    self._hand_out(batch)
                    self._collect(batch)
                    done(len(batch.outcomes))
        except BaseException:
            # Outcomes still under way would be taken for those of the next call.
            self.close()
            raise
        return [batch.outcomes[index] for index in range(len(tasks))]

    def _start(self) -> None:
        while len(self._workers) < self._processes:
            self._workers.append(Worker(self._graders))

    def _hand_out(self, batch: Batch) -> None:
        for slot, worker in enumerate(self._workers):
            busy = Counter(filter(None, map(batch.domain_of, self._workers)))
            if worker.ready and not worker.tasks and (domain := batch.next_domain(busy)):
                if worker.process.poll() is None:
                    batch.send(worker, domain)
                else:
                    self._replace(slot)

    def _collect(self, batch: Batch) -> None:
        """Wait until a worker sends something, dies, or is over its deadline, and deal with it."""
        left = min(worker.deadline for worker in self._workers) - time.monotonic()
        wait([worker.connection for worker in self._workers], None if left == math.inf else max(left, 0.0))
        for slot, worker in enumerate(self._workers):
            try:
                while worker.connection.poll():
                    message = worker.connection.recv()
                    if worker.ready:
                        batch.answered(worker, message)
                    else:
                        worker.ready, worker.deadline, self._failed_starts = True, math.inf, 0
            except (EOFError, OSError):
                exit_code = self._replace(slot)
                if worker.tasks:
                    batch.died(worker, exit_code)
                continue
            if time.monotonic() >= worker.deadline:
                if worker.ready:
                    batch.timed_out(worker)
                self._replace(slot)

    def _replace(self, slot: int) -> int:
        """Kill the worker and start another in its place; the exit code of the old one."""
        worker = self._workers[slot]
        exit_code = worker.kill()
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts >= FAILED_STARTS:
                raise WorkerError(
                    f"{FAILED_STARTS} grader processes in a row ended before they were ready, the last with exit "
                    f"code {exit_code}; their own messages are on standard error"
                )
        self._workers[slot] = Worker(self._graders)
        return exit_code
