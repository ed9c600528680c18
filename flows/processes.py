"""Processes that are started and ended here: recorded by pid and start time, ended with all that they started."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import psutil
from pydantic import BaseModel

from rlcore import machine
from rlcore.log_end import last_lines
from rlcore.machine import HOST, started

START_SECONDS = 90.0
STOP_SECONDS = 15.0
MARK = "RLVR_SERVICE"
"""Environment variable that a service hands down to all that it starts, by which they are found when it is dead."""


class ServiceError(RuntimeError):
    """A service did not start, or what it needs is taken."""


class ServiceHangs(ServiceError):
    """A service is there and does not answer."""


class ServiceDied(ServiceError):
    """A service ended while it was needed."""


class Service(BaseModel):
    """One started process."""

    name: str
    pid: int
    created: float
    """`rlcore.machine.started`: with the pid it tells the process from a later one of the same number."""
    log: str

    @property
    def mark(self) -> str:
        return mark(self.name, self.log)

    def process(self) -> psutil.Process | None:
        """The live process."""
        try:
            process = psutil.Process(self.pid)
            return process if self.is_of(process) and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None

    def is_of(self, process: psutil.Process) -> bool:
        """Whether the process is this service's, alive or a zombie, and not a later one of its number."""
        return started(process.pid) == self.created

    def log_end(self) -> str:
        return f"the end of {self.log}:\n{last_lines(self.log)}"


def dead_of(services: Iterable[Service]) -> list[Service]:
    return [service for service in services if service.process() is None]


def mark(name: str, log: str | Path) -> str:
    """The value of MARK. A log belongs to one service of one `rlvr up`."""
    return f"{name}:{log}"


def start_process(
    name: str, command: list[str], environment: dict[str, str], log: Path, *, end_with_parent: bool = False
) -> Service:
    """Start a service that writes to a new log; the log before stays as `NAME.previous.log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists():
        log.replace(log.with_suffix(f".previous{log.suffix}"))
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment, MARK: mark(name, log)},
            # A session of its own: Ctrl-C in the terminal reaches the training, which then ends these in order.
            start_new_session=True,
            preexec_fn=machine.end_with_parent if end_with_parent else None,
        )
    return Service(name=name, pid=process.pid, created=started(process.pid), log=str(log))


def await_ready(service: Service, ready: Callable[[], bool]) -> None:
    """
    Raises:
        ServiceError: it ended, or was not ready in START_SECONDS; with the end of its log.
    """
    deadline = time.monotonic() + START_SECONDS
    while not ready():
        ended = service.process() is None
        if ended or time.monotonic() > deadline:
            fate = "ended while starting" if ended else f"was not ready after {START_SECONDS:.0f} s"
            raise ServiceError(f"{service.name} {fate}; {service.log_end()}")
        time.sleep(0.2)


def end(service: Service, patience: float = STOP_SECONDS) -> bool:
    """End a process with everything it started, also what is left of it if it died; whether it was alive.

    Args:
        patience: seconds that it has to end by itself, before it is killed.
    """
    process = service.process()
    family = [] if process is None else [process]
    # Between being found and being ended any of them may end by itself.
    if process is not None:
        with suppress(psutil.NoSuchProcess):
            # What a supervisor started are services of their own.
            family += [child for child in process.children(recursive=True) if _mark_of(child) in (None, service.mark)]
            process.terminate()
        psutil.wait_procs([process], timeout=patience)
    family += [left for left in members(service) if left not in family]
    # What was told to end gets a moment to do so; what lost its parent was told nothing.
    _, alive = psutil.wait_procs(family, timeout=2.0 if process else 0)
    for survivor in alive:
        with suppress(psutil.NoSuchProcess):
            survivor.kill()
    psutil.wait_procs(alive, timeout=STOP_SECONDS)
    return process is not None


def members(service: Service) -> list[psutil.Process]:
    """The live processes that a service started, of whom it need not be one any more.

    By its mark, or by its session: some of Ray's overwrite their environment with a title.
    """
    session = _session(service)
    return [
        process
        for process in psutil.process_iter()
        if _mark_of(process) == service.mark or (session and _session_of(process) == session)
    ]


def _session(service: Service) -> int | None:
    """The session that the service leads, or led. No new process gets its number as long as someone is in it."""
    try:
        return service.pid if service.is_of(psutil.Process(service.pid)) else None
    except psutil.NoSuchProcess:
        return service.pid


def _session_of(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid)
    except (ProcessLookupError, PermissionError):
        return None


def _mark_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(MARK)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def refuse_taken_port(port: int, what: str) -> None:
    """
    Raises:
        ServiceError: something listens there; names its process where this user may see it.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            return
        except OSError:
            pass
    owners = [c.pid for c in psutil.net_connections("tcp") if c.laddr and c.laddr.port == port and c.status == "LISTEN"]
    owner = f" by process {owners[0]}" if owners and owners[0] else ""
    raise ServiceError(
        f"port {port}, meant for {what}, is in use{owner}: end that process, `rlvr down` if it is ours, "
        "or give another port (rlvr up --port, --ray-port)"
    )
