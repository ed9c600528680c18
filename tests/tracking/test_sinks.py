from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlcore.config import Config
from rlcore.store import RunStore
from rlcore.tracking.sinks import Tracker, TrackingError
from tests.tracking.conftest import config_of


def config_with(runs_dir: Path, **tracking: Any) -> Config:
    config = config_of(runs_dir)
    return config.model_copy(update={"tracking": config.tracking.model_copy(update=tracking)})


@pytest.fixture(autouse=True)
def no_wandb_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))


def test_an_iteration_is_written_once_by_whatever_process(tmp_path: Path) -> None:
    config = config_with(tmp_path, wandb="off", tensorboard=False)
    directory = tmp_path / "run"
    tracker = Tracker(directory, config)
    tracker.log(1, {"reward/mean": 0.25})
    tracker.log(1, {"reward/mean": 0.75})
    Tracker(directory, config).log(1, {"reward/mean": 0.75})
    Tracker(directory, config).log(2, {"reward/mean": 0.5})
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"iteration": 1, "reward/mean": 0.25}, {"iteration": 2, "reward/mean": 0.5}]


def test_half_a_line_left_by_a_crash_is_written_again_whole(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "metrics.jsonl").write_text('{"iteration": 1, "reward/mean": 0.25}\n{"iteration": 2, "rew')
    Tracker(directory, config_with(tmp_path, wandb="off", tensorboard=False)).log(2, {"reward/mean": 0.5})
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == [1, 2]


def test_a_metric_that_is_not_finite_is_refused_by_name(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path / "run", config_with(tmp_path, wandb="off", tensorboard=False))
    with pytest.raises(ValueError, match="iteration 3 are not finite: train/grad_norm"):
        tracker.log(3, {"reward/mean": 0.5, "train/grad_norm": float("nan")})
    assert not (tmp_path / "run/metrics.jsonl").exists()


def test_tensorboard_gets_every_metric_at_its_iteration(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path / "run", config_with(tmp_path, wandb="off", tensorboard=True))
    tracker.log(1, {"reward/mean": 0.25, "train/entropy": 1.5})
    tracker.log(2, {"reward/mean": 0.5})
    tracker.close()
    events = EventAccumulator(str(tmp_path / "run/tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("reward/mean")] == [(1, 0.25), (2, 0.5)]
    assert [(event.step, event.value) for event in events.Scalars("train/entropy")] == [(1, 1.5)]


def test_wandb_offline_stays_in_the_run_directory_and_keeps_its_id(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = config_with(tmp_path, wandb="offline", tensorboard=False)
    for run in ("run", "other"):
        RunStore(str(tmp_path / run)).assign_run_id()
    for iteration in (1, 2):
        tracker = Tracker(tmp_path / "run", config)
        tracker.log(iteration, {"reward/mean": 0.25})
        tracker.close()
    other = Tracker(tmp_path / "other", config)
    other.close()

    def ids(run: str) -> set[str]:
        return {path.stem.removeprefix("run-") for path in (tmp_path / run / "wandb").glob("offline-run-*/run-*.wandb")}

    assert len(ids("run")) == len(ids("other")) == 1
    assert ids("run") != ids("other")
    assert capfd.readouterr() == ("", "")


def test_wandb_online_without_a_key_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TrackingError, match=r"WANDB_API_KEY.*tracking\.wandb=offline"):
        Tracker(tmp_path / "run", config_with(tmp_path, wandb="online", tensorboard=False))
