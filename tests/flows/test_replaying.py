"""What `rlvr replay` refuses before it starts anything. What it computes is tested in tests/stack/test_replay.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.recorded_run import RecordedRun

REPOSITORY = Path(__file__).parents[2]


def replay(run: Path, first: int, last: int) -> tuple[int, str]:
    code = """
import sys
from flows.cli import main
try:
    main()
finally:
    assert "ray" not in sys.modules
"""
    command = [sys.executable, "-c", code, "replay", str(run), "--from", str(first), "--to", str(last)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def run(tmp_path: Path) -> Path:
    recorded = RecordedRun(tmp_path / "run", 2)
    recorded.record_all({})
    return recorded.store.directory


def test_updates_in_the_wrong_order_are_refused(run: Path) -> None:
    status, output = replay(run, 3, 2)
    assert status == 2 and "--from 3 comes after --to 2" in output


def test_an_update_that_the_run_does_not_have_is_refused_with_those_it_has(run: Path) -> None:
    status, output = replay(run, 2, 3)
    assert status == 1
    assert "updates 2 to 3 cannot be replayed: the ledger of" in output and "has those from 1 to 2" in output


def test_a_batch_that_is_missing_is_named(run: Path) -> None:
    (run / "iterations/000001/train.parquet").unlink()
    status, output = replay(run, 2, 2)
    assert status == 1
    assert "iterations/000001/train.parquet is not there: update 1 cannot be applied again" in output
