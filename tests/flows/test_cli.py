"""What the command says to a user who got something wrong: what, where, and what would be right."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.runs import open_run
from tests.disks import fill, make_read_only, small_disk

REPOSITORY = Path(__file__).parents[2]


def rlvr(*arguments: str, cache: Path | None = None) -> tuple[int, str]:
    """Exit status and output of the command."""
    environment = {**os.environ, "COLUMNS": "200", **({"RLVR_CACHE": str(cache)} if cache else {})}
    command = [sys.executable, "-c", "from flows.cli import main; main()", *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_a_dry_run_prints_configuration_and_plan_and_starts_nothing(tmp_path: Path) -> None:
    status, output = rlvr("train", "arithmetic", "--dry-run", f"runs_dir={tmp_path}/runs", "algorithm=grpo_kl")
    assert status == 0
    assert "rollout_batch_size: 16" in output
    assert "generate ─► ref_logprob" in output
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "override, says",
    [
        ("rollout.rollout_batch_sise=3", "did you mean rollout.rollout_batch_size"),
        ("data.domain_interleave_probs.arithmetic=0.9", "must sum to 1"),
        ("algorithm.loss_agg_mode=mean", "token-mean"),
    ],
)
def test_a_wrong_setting_is_one_message_that_says_what_is_right(override: str, says: str) -> None:
    status, output = rlvr("train", "arithmetic", override)
    assert status == 1
    assert says in output
    assert "Traceback" not in output


def test_an_unknown_run_names_the_runs_that_are_there() -> None:
    status, output = rlvr("show", "no-such-run", "1", "generate")
    assert status == 1
    assert "no run at runs/no-such-run" in output and "runs here:" in output


def test_a_port_in_use_is_named_before_anything_is_started(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        status, output = rlvr("up", "--port", str(listener.getsockname()[1]), cache=tmp_path)
    assert status == 1
    assert "meant for the Prefect server, is in use" in output and "--port" in output
    assert rlvr("down", cache=tmp_path) == (0, "nothing was running\n")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path, kibibytes=64):
        yield tmp_path


def test_a_full_disk_is_named_before_anything_is_started(disk: Path) -> None:
    (disk / "runs" / "arithmetic").mkdir(parents=True)
    fill(disk)
    status, output = rlvr("train", "arithmetic", f"runs_dir={disk}/runs")
    assert status == 1
    assert f"no space left to write {disk}/runs/arithmetic" in output and "free some and retry" in output


@pytest.mark.parametrize("begun", [False, True])
def test_a_read_only_directory_is_named_before_anything_is_started(disk: Path, begun: bool) -> None:
    if begun:
        open_run("arithmetic", [f"runs_dir={disk}/runs"])
    make_read_only(disk)
    status, output = rlvr("train", "arithmetic", f"runs_dir={disk}/runs")
    assert status == 1
    assert f"{disk}/runs/arithmetic" in output and "(Read-only file system): make the directory writable" in output
    assert "Traceback" not in output and "Prefect" not in output
