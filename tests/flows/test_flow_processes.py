"""The process that stands by for the next flow run. There is no Prefect server: its flow run fails at once."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import anyio
import anyio.abc
import psutil
import pytest
from prefect.settings import get_current_settings

from flows import standby
from flows.flow_processes import ENGINE, STANDBY, FlowRunProcesses, code_in

RUNTIME = """
from contextlib import contextmanager
from types import SimpleNamespace

@contextmanager
def stage_runner():
    yield SimpleNamespace(warm_up=lambda seconds: None)
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with flows of little code, which need no Ray."""
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    flows = tmp_path / "flows"
    flows.mkdir()
    shutil.copy(standby.__file__, flows)
    for module in ("__init__", "rlvr", "train"):
        (flows / f"{module}.py").touch()
    (flows / "runtime.py").write_text(RUNTIME)
    return tmp_path


async def start(
    processes: FlowRunProcesses, group: anyio.abc.TaskGroup, directory: Path, **variables: str
) -> anyio.abc.Process:
    """The process of a flow run, as the Prefect worker starts it."""
    settings = get_current_settings().to_environment_variables(exclude_unset=True)

    async def run(task_status: anyio.abc.TaskStatus[anyio.abc.Process]) -> None:
        await processes.run(
            ENGINE,
            env={**os.environ, **settings, **variables},
            cwd=directory,
            stream_output=True,
            task_status=task_status,
            task_status_handler=lambda process: process,
        )

    process: anyio.abc.Process = await group.start(run)
    return process


def command_of_the_next(directory: Path, change: Callable[[], object] = lambda: None, **variables: str) -> list[str]:
    """Of the process that gets a flow run after `change`, which happens while a process stands by."""

    async def next_flow_run() -> list[str]:
        async with FlowRunProcesses(directory) as processes, anyio.create_task_group() as group:
            change()
            await anyio.sleep(0.5)
            process = await start(processes, group, directory, **{standby.FLOW_RUN_ID: str(uuid4()), **variables})
            command = psutil.Process(process.pid).cmdline()
        return command

    return asyncio.run(next_flow_run())


def test_a_flow_run_gets_the_process_that_stands_by_and_the_next_one_another(directory: Path) -> None:
    async def two_flow_runs() -> list[int]:
        pids = []
        async with FlowRunProcesses(directory) as processes:
            for _ in range(2):
                async with anyio.create_task_group() as group:
                    process = await start(processes, group, directory, **{standby.FLOW_RUN_ID: str(uuid4())})
                    assert psutil.Process(process.pid).cmdline() == STANDBY
                    pids.append(process.pid)
                assert process.returncode == 1, "without a server no flow run succeeds"
        return pids

    first, second = asyncio.run(two_flow_runs())
    assert first != second


def test_the_process_shows_its_flow_run_in_proc(directory: Path) -> None:
    flow_run = str(uuid4())

    async def shown() -> str | None:
        async with FlowRunProcesses(directory) as processes, anyio.create_task_group() as group:
            process = await start(processes, group, directory, **{standby.FLOW_RUN_ID: flow_run})
            assert psutil.Process(process.pid).cmdline() == STANDBY
            found = psutil.Process(process.pid).environ().get(standby.FLOW_RUN_ID)
        return found

    assert asyncio.run(shown()) == flow_run


def test_code_that_was_changed_meanwhile_is_what_the_flow_run_gets(directory: Path) -> None:
    edited = directory / "flows" / "rlvr.py"
    assert command_of_the_next(directory, lambda: edited.write_text("# changed\n")) == ENGINE


@pytest.mark.parametrize("file", ["flows/train.py", "tasks/new.py", "rlcore/new/stage.py", "prefect.toml"])
def test_a_changed_or_new_file_is_other_code(directory: Path, file: str) -> None:
    before = code_in(directory)
    assert before == code_in(directory)
    (directory / file).parent.mkdir(parents=True, exist_ok=True)
    (directory / file).write_text("# changed\n")
    assert code_in(directory) != before


def test_a_flow_run_of_other_variables_gets_a_process_of_its_own(directory: Path) -> None:
    assert command_of_the_next(directory, PREFECT_HOME=str(directory)) == ENGINE


def test_a_process_that_died_standing_by_costs_no_flow_run(directory: Path) -> None:
    def kill() -> None:
        children = [child for child in psutil.Process().children() if child.cmdline() == STANDBY]
        assert children
        for child in children:
            child.kill()

    assert command_of_the_next(directory, kill) == ENGINE


def test_a_process_that_finds_no_ray_takes_no_flow_run_and_says_why(
    directory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (directory / "flows" / "runtime.py").write_text("raise ConnectionError('Ray is down')")
    assert command_of_the_next(directory) == ENGINE
    assert "Ray is down" in capfd.readouterr().err


def test_no_process_is_left_standing_by_when_its_worker_is_killed(directory: Path) -> None:
    code = f"""
import asyncio, os, pathlib, signal
from flows.flow_processes import Standby
async def work():
    standby = await Standby.start(pathlib.Path({str(directory)!r}))
    print(standby.process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(work())
"""
    worker = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    left = [psutil.Process(pid) for pid in map(int, worker.stdout.split()) if psutil.pid_exists(pid)]
    assert worker.returncode == -signal.SIGKILL, worker.stderr
    assert not psutil.wait_procs(left, timeout=30)[1]
