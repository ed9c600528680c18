"""The processes of flow runs, as the Prefect worker starts them: one stands by, so a Retry waits for no imports."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import anyio
import anyio.abc
from prefect.settings import get_current_settings
from prefect.utilities.processutils import consume_process_output, run_process

from flows.standby import FLOW_RUN_ID, NO_FLOW_RUN, TAKEN

ENGINE = [sys.executable, "-m", "prefect.engine"]
STANDBY = [sys.executable, "-m", "flows.standby"]
PACKAGES = ("flows", "tasks", "rlcore")
OF_ONE_FLOW_RUN = "PREFECT__"
"""How the names of variables begin that tell a process its flow run. The others are the same for all flow runs."""


class Standby:
    """A process that has imported the flows, and waits for a flow run of the same code, directory and environment."""

    def __init__(
        self,
        process: anyio.abc.Process,
        stdin: socket.socket,
        directory: Path,
        variables: dict[str, str],
        code: object,
    ) -> None:
        self.process = process
        self._stdin = stdin
        self._directory = directory
        self._variables = variables
        self._code = code

    @classmethod
    async def start(cls, directory: Path) -> Standby:
        variables = {**os.environ, **get_current_settings().to_environment_variables(exclude_unset=True)}
        code = code_in(directory)
        ours, its = socket.socketpair()
        ours.setblocking(False)
        with its:
            process = await anyio.open_process(
                STANDBY, stdin=its.fileno(), env={**variables, FLOW_RUN_ID: NO_FLOW_RUN}, cwd=directory
            )
        return cls(process, ours, directory, _common(variables), code)

    def suits(self, command: list[str], directory: Path, variables: dict[str, str]) -> bool:
        """Whether the flow run finds in it what it would find in a process that was started for it."""
        return (
            self.process.returncode is None
            and command == ENGINE
            and directory == self._directory
            and _common(variables) == self._variables
            and code_in(directory) == self._code
        )

    async def takes(self, variables: dict[str, str]) -> bool:
        """Give it the flow run of these variables; whether it runs it now. If not, it never will."""
        own = {name: value for name, value in variables.items() if name.startswith(OF_ONE_FLOW_RUN)}
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(self._stdin, json.dumps(own).encode() + b"\n")
            return await loop.sock_recv(self._stdin, len(TAKEN)) == TAKEN
        except ConnectionError:
            return False
        finally:
            self._stdin.close()

    async def end(self) -> None:
        """Kill it, if it is not dead; what it said is in this process's output."""
        self._stdin.close()
        async with self.process:
            if self.process.returncode is None:
                self.process.kill()
            await consume_process_output(self.process, stdout_sink=sys.stdout, stderr_sink=sys.stderr)


class FlowRunProcesses:
    """Starts the processes of flow runs. One stands by; the next one is started when a flow run is over."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._standby: Standby | None = None
        self._starting = anyio.Lock()

    async def __aenter__(self) -> FlowRunProcesses:
        await self._restock()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._standby is not None:
            await self._standby.end()

    async def run(
        self,
        command: list[str],
        *,
        env: dict[str, str],
        cwd: Path | str | None,
        stream_output: bool,
        task_status: anyio.abc.TaskStatus[Any],
        task_status_handler: Callable[[anyio.abc.Process], Any],
    ) -> anyio.abc.Process:
        """A flow run's process, at its end. As `prefect.utilities.processutils.run_process`, which it stands in for."""
        try:
            process = await self._given(command, Path(cwd or os.getcwd()), env) if stream_output else None
            if process is None:
                return await run_process(
                    command,
                    env=env,
                    cwd=cwd,
                    stream_output=stream_output,
                    task_status=task_status,
                    task_status_handler=task_status_handler,
                )
            async with process:
                task_status.started(task_status_handler(process))
                await consume_process_output(process, stdout_sink=sys.stdout, stderr_sink=sys.stderr)
                await process.wait()
            return process
        finally:
            await self._restock()

    async def _given(self, command: list[str], directory: Path, variables: dict[str, str]) -> anyio.abc.Process | None:
        """The process that stood by, at work; None if there is none that suits."""
        standby, self._standby = self._standby, None
        if standby is None:
            return None
        if standby.suits(command, directory, variables) and await standby.takes(variables):
            return standby.process
        await standby.end()
        return None

    async def _restock(self) -> None:
        async with self._starting:
            if self._standby is None:
                self._standby = await Standby.start(self._directory)


def code_in(directory: Path) -> dict[str, tuple[int, ...]]:
    """What tells whether a process started now would run other code: source files, settings, installed packages."""
    sources = [path for package in PACKAGES for path in (directory / package).rglob("*.py")]
    found = [*sources, *directory.glob("*.toml"), Path(sysconfig.get_path("purelib"))]
    stats = {str(path): path.stat() for path in found}
    return {path: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}


def _common(variables: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if not name.startswith(OF_ONE_FLOW_RUN)}
