"""Environment and output of the engine's processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlcore.generation.vllm_process import environment_variables, last_error, log_size, output_to


def test_environment_is_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "old")
    monkeypatch.delenv("ADDED", raising=False)
    monkeypatch.delenv("ADDED_INSIDE", raising=False)
    with environment_variables({"KEPT": "new", "ADDED": "1"}):
        os.environ["ADDED_INSIDE"] = "1"
        assert (os.environ["KEPT"], os.environ["ADDED"]) == ("new", "1")
    assert os.environ["KEPT"] == "old"
    assert not {"ADDED", "ADDED_INSIDE"} & os.environ.keys()


def test_output_of_this_process_and_its_children_goes_to_the_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "deep" / "engine.log"
    with output_to(log):
        os.write(1, b"from here\n")
        subprocess.run([sys.executable, "-c", "import sys; print('from the child', file=sys.stderr)"], check=True)
    os.write(1, b"back on the terminal\n")
    assert log.read_text().splitlines() == ["from here", "from the child"]
    assert capfd.readouterr().out == "back on the terminal\n"


def test_last_error_is_the_last_exception_after_the_start_that_names_a_cause(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("ERROR [core.py:1] ValueError: of an earlier start\n")
    start = log_size(log)
    assert last_error(log, start) == ""
    with log.open("a") as file:
        file.write("ERROR [core.py:2] RuntimeError: first\nERROR [core.py:3] MemoryError: second\n")
        file.write("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n")
    assert last_error(log, start) == "MemoryError: second"


def test_a_log_that_is_not_there_yet_has_no_bytes(tmp_path: Path) -> None:
    assert log_size(tmp_path / "absent") == 0
    assert log_size(None) == 0
