"""Stacks of processes that stand still, and their end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rlcore.cluster.stacks import end_with_stacks, stacks
from rlcore.machine import started
from rlcore.progress import Progress, Step

PROGRAM = """
import subprocess, sys, time
def wait_for_ever():
    print("ready", flush=True)
    time.sleep(1000)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
wait_for_ever()
"""


@pytest.fixture
def stopped() -> Iterator[psutil.Process]:
    """A process with a child, stopped in a function."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None and program.stdout.readline() == b"ready\n"
        process = psutil.Process(program.pid)
        family = [process, *process.children()]
        time.sleep(0.2)
        program.send_signal(signal.SIGSTOP)
        while process.status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        yield process
        for member in family:
            if member.is_running():
                member.kill()


def progress_of(process: psutil.Process) -> Progress:
    steps = [Step(name="micro-batches", done=3, total=8)]
    return Progress.here().model_copy(update={"pid": process.pid, "created": started(process.pid), "steps": steps})


def test_the_stacks_of_a_stopped_process_name_its_functions(stopped: psutil.Process) -> None:
    said = stacks(stopped)
    assert f"{stopped.pid}, stopped" in said and "wait_for_ever (" in said


def test_without_py_spy_there_is_what_the_kernel_says(stopped: psutil.Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    said = stacks(stopped)
    assert "py-spy: [Errno 2]" in said and f"thread {stopped.pid} python" in said and "T (stopped)" in said


def test_a_process_and_its_children_are_ended_and_their_stacks_kept(stopped: psutil.Process, tmp_path: Path) -> None:
    [child] = stopped.children()
    said = end_with_stacks(tmp_path, {"trainer-0": progress_of(stopped), "trainer-1": None})
    files = sorted(tmp_path.glob("stacks/*.txt"))
    assert [file.name.split("-", 2)[2] for file in files] == ["trainer-0.txt", "trainer-1.txt"]
    assert f"trainer-0 (process {stopped.pid} on " in said and "3/8 micro-batches) was ended" in said
    assert "trainer-1 (its process did not come up)" in said and all(str(file) in said for file in files)
    assert "wait_for_ever (" in files[0].read_text() and f"---- {child.pid}, " in files[0].read_text()
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    assert not stopped.is_running() or stopped.status() == psutil.STATUS_ZOMBIE


def test_a_later_process_of_the_same_number_is_left_alone(stopped: psutil.Process, tmp_path: Path) -> None:
    earlier = progress_of(stopped).model_copy(update={"created": started(stopped.pid) - 100})
    end_with_stacks(tmp_path, {"trainer-0": earlier})
    [file] = tmp_path.glob("stacks/*.txt")
    assert f"process {stopped.pid} is gone" in file.read_text()
    assert stopped.status() == psutil.STATUS_STOPPED
