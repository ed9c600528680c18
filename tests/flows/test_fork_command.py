"""The command `rlvr fork`, and going on with what it made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flows.test_cli import rlvr
from tests.recorded_run import RecordedRun


@pytest.fixture
def run(tmp_path: Path) -> Path:
    recorded = RecordedRun(tmp_path / "arithmetic", 4)
    recorded.record_all({0: 0.1, 2: 0.2, 4: 0.3})
    return recorded.store.directory


def test_a_fork_says_what_it_changed_and_the_command_that_goes_on(run: Path) -> None:
    command = ["fork", str(run), "trainer.learning_rate=1e-3", "iterations=9", "--from", "2", "--run", "steeper"]
    status, output = rlvr(*command)
    assert status == 0
    assert output.splitlines() == [
        f"{run.parent}/steeper: {run} up to iteration 2",
        "iterations: 4 → 9",
        "trainer.learning_rate: 2e-05 → 0.001",
        f"next: rlvr train {run.parent}/steeper/config.yaml",
    ]
    assert rlvr("verify", f"{run.parent}/steeper") == (0, "verified: 19 stage outputs, 1 checkpoint, nothing wrong\n")

    status, output = rlvr("train", f"{run.parent}/steeper/config.yaml", "--dry-run", "iterations=7")
    assert status == 0
    assert "learning_rate: 0.001" in output and "iterations: 7" in output
    assert rlvr(*command)[0] == 1, "it is there already"


def test_a_fork_of_an_iteration_without_a_checkpoint_names_those_that_there_are(run: Path) -> None:
    status, output = rlvr("fork", str(run), "--from", "3")
    assert status == 1
    assert "no checkpoint of iteration 3; there are: 2, 4" in output and "Traceback" not in output
    assert [path.name for path in run.parent.iterdir()] == ["arithmetic"]


def test_the_address_of_no_run_is_said_to_be_none(tmp_path: Path) -> None:
    status, output = rlvr("train", f"{tmp_path}/none/config.yaml")
    assert status == 1
    assert f"{tmp_path}/none/config.yaml is not there" in output and "Traceback" not in output
