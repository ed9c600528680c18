"""What processes that hang are at: their stacks, before they are killed."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import psutil
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlcore.machine import started
from rlcore.progress import Progress

DIRECTORY = "stacks"
SPY_SECONDS = 15.0
"""For the stacks of one process."""
END_SECONDS = 5.0
"""For killed processes to be gone."""
NODE_SECONDS = 60.0
"""For a process with its children, on whatever node."""


def end_with_stacks(run_directory: Path, stuck: Mapping[str, Progress | None]) -> str:
    """Write the stacks of processes and their children to RUN/stacks/, one file each, and kill them where they run.

    Where stacks cannot be had, the file says why. Returns what each was at, and the names of the files.
    """
    folder = run_directory / DIRECTORY
    folder.mkdir(exist_ok=True)
    moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    ended = []
    for name, progress in stuck.items():
        what = f"{name} ({progress or 'its process did not come up'})"
        file = folder / f"{moment}-{name}.txt"
        file.write_text(f"{what}\n{_on_its_node(progress) if progress else ''}")
        ended.append(f"{what} was ended, its stacks are in {file}")
    return "; ".join(ended)


def _on_its_node(progress: Progress) -> str:
    if progress.host == socket.gethostname():
        return _end_family(progress.pid, progress.created)
    node = next((node for node in ray.nodes() if node["Alive"] and node["NodeManagerHostname"] == progress.host), None)
    if node is None:
        return f"{progress.host} is not in the cluster\n"
    there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    end = ray.remote(_end_family).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
    try:
        return str(ray.get(end.remote(progress.pid, progress.created), timeout=NODE_SECONDS))
    except RayError as error:
        return f"nothing could be done on {progress.host}: {error}\n"


def _end_family(pid: int, created: float) -> str:
    """The stacks of a process of this machine and of all its children, which are then killed, the parent first."""
    try:
        parent = psutil.Process(pid)
        if started(pid) != created:
            raise psutil.NoSuchProcess(pid)
        family = [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return f"process {pid} is gone\n"
    said = "\n".join(stacks(process) for process in family)
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(family, timeout=END_SECONDS)
    return said


def stacks(process: psutil.Process) -> str:
    """Of all threads of a process, by py-spy; where that is not allowed to look, what the kernel says of them."""
    try:
        heading = f"---- {process.pid}, {process.status()}"
        # It stops a process to look at it, which one that is stopped already could not be.
        stopped = ["--nonblocking"] if process.status() == psutil.STATUS_STOPPED else []
        command = [str(Path(sys.executable).with_name("py-spy")), "dump", *stopped, "--pid", str(process.pid)]
        try:
            spied = subprocess.run(command, capture_output=True, text=True, timeout=SPY_SECONDS, check=True)
            return f"{heading}\n{spied.stdout}"
        except (OSError, subprocess.SubprocessError) as error:
            why = getattr(error, "stderr", None) or error
            return f"{heading}\npy-spy: {why}\n{' '.join(process.cmdline())}\n{_threads(process.pid)}"
    except psutil.NoSuchProcess:
        return f"---- {process.pid} is gone\n"


def _threads(pid: int) -> str:
    """Name and state of every thread, and where in the kernel it waits."""
    lines = []
    for thread in sorted(Path(f"/proc/{pid}/task").glob("*")):
        try:
            status = dict(line.split(":\t", 1) for line in (thread / "status").read_text().splitlines())
            lines.append(f"thread {thread.name} {status['Name']}: {status['State']}, {(thread / 'wchan').read_text()}")
        except OSError:
            continue
    return "\n".join(lines) + "\n"
