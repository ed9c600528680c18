"""The process of one rank, as a Ray actor, and where it runs."""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlcore.log_end import last_lines
from rlcore.machine import SET_PARENT_DEATH_SIGNAL
from rlcore.progress import doing, report_to

LOG_SECONDS = 10.0
"""How long the node of a dead rank has to show the end of its log."""


@dataclass(frozen=True)
class Place:
    """Where a process runs."""

    address: str
    """Of its node, as the cluster knows it."""
    host: str
    node_id: str
    pid: int
    log: str
    """File on that node with what the process writes to stderr."""

    def __str__(self) -> str:
        return f"node {self.address} ({self.host}), pid {self.pid}"


class RankProcess:
    """Says where it is; then builds the object that it is there for; then passes calls to it."""

    def __init__(self, progress: Path) -> None:
        end_forks_with_this_process()
        report_to(progress)
        self._object: Any = None
        self._identity: str | None = None

    def place(self) -> Place:
        return Place(
            address=ray.util.get_node_ip_address(),
            host=socket.gethostname(),
            node_id=ray.get_runtime_context().get_node_id(),
            pid=os.getpid(),
            log=os.readlink("/proc/self/fd/2"),
        )

    def free_port(self) -> int:
        """A port of the node's address that nothing listens on."""
        with socket.socket() as listener:
            listener.bind((ray.util.get_node_ip_address(), 0))
            return int(listener.getsockname()[1])

    def build(self, identity: str, module: str, name: str, *arguments: Any) -> None:
        with doing("build"):
            self._object = getattr(importlib.import_module(module), name)(*arguments)
        self._identity = identity

    def is_built(self, identity: str) -> bool:
        """Whether it holds the object that was built under that identity."""
        return self._identity == identity

    def call(self, method: str, *arguments: Any) -> Any:
        with doing(method):
            return getattr(self._object, method)(*arguments)


def end_forks_with_this_process() -> None:
    """Processes that this one forks die with it, however it dies.

    Megatron forks one to write a checkpoint. It has this process's connections: as long as it lives, Ray does not
    notice that this one is dead.
    """
    kernel = ctypes.CDLL(None)
    os.register_at_fork(after_in_child=lambda: kernel.prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL))


def end_of_log(place: Place) -> str:
    """The last lines of a process's log, read on its node; or why they cannot be read."""
    there = NodeAffinitySchedulingStrategy(place.node_id, soft=False)
    read = ray.remote(last_lines).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
    try:
        return f"the end of {place.log}:\n{ray.get(read.remote(place.log), timeout=LOG_SECONDS)}"
    except RayError as error:
        return f"{place.log} cannot be read: {error}"
