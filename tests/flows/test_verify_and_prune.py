"""The commands `rlvr verify` and `rlvr prune`, as a user runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.recorded_run import RecordedRun

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    recorded = RecordedRun(tmp_path / "run", 4)
    recorded.record_all({0: 0.1, 2: 0.2, 4: 0.3})
    return recorded.store.directory


def python(code: str, *arguments: str, typed: str = "") -> tuple[int, str]:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, input=typed, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def rlvr(*arguments: str, typed: str = "") -> tuple[int, str]:
    return python("from flows.cli import main; main()", *arguments, typed=typed)


def test_verify_ends_with_one_line_and_the_status_that_says_it(run: Path) -> None:
    assert rlvr("verify", str(run)) == (0, "verified: 37 stage outputs, 2 checkpoints, nothing wrong\n")
    (run / "iterations/000001/prompts.parquet").unlink()
    (run / "checkpoints/.saving").mkdir()
    status, output = rlvr("verify", str(run))
    headings = [line for line in output.splitlines() if not line.startswith(" ")]
    assert status == 1
    assert headings == ["outputs", "leftovers", "verified: 37 stage outputs, 2 checkpoints, 1 wrong"]
    assert "  wrong    iterations/000001/prompts.parquet (iteration 1, sample): is missing" in output
    assert "  harmless checkpoints/.saving: " in output


def test_verify_needs_none_of_the_engines(run: Path) -> None:
    code = """
import sys
from flows.cli import app
try:
    app(["verify", sys.argv[1]])
finally:
    print(sorted({"torch", "ray", "prefect", "vllm", "megatron", "transformers"} & sys.modules.keys()))
"""
    status, output = python(code, str(run))
    assert status == 0
    assert output.splitlines()[1:] == ["[]"]


def test_prune_says_how_much_and_deletes_only_what_was_confirmed(run: Path) -> None:
    files = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    status, output = rlvr("prune", str(run), typed="n\n")
    assert status == 0
    assert "iterations 1–3: 0.1 MB of batches in 18 files" in output and "delete 0.1 MB? [y/N]" in output
    assert files.items() <= {path: path.stat().st_mtime_ns for path in run.rglob("*")}.items()
    status, output = rlvr("prune", str(run), typed="y\n")
    assert status == 0 and "deleted 0.1 MB" in output
    assert rlvr("verify", str(run)) == (
        0,
        "verified: 19 stage outputs (18 more pruned), 1 checkpoint, nothing wrong\n",
    )
    status, output = rlvr("prune", str(run), "--yes")
    assert status == 0 and "nothing to delete" in output


def test_neither_takes_a_directory_that_is_no_run(tmp_path: Path) -> None:
    for command in ("verify", "prune"):
        status, output = rlvr(command, str(tmp_path))
        assert status == 1 and "no run at" in output and "Traceback" not in output
