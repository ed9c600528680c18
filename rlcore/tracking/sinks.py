"""Where metrics go: metrics.jsonl, TensorBoard, Weights & Biases."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from rlcore.config import Config
from rlcore.store import RunStore
from rlcore.tracking.history import METRICS_FILE, read_metrics

if TYPE_CHECKING:
    import wandb


class TrackingError(RuntimeError):
    """Metrics cannot go where the configuration sends them."""


class Tracker:
    """Writes each iteration's metrics once, to every place that `config.tracking` names.

    Several processes may continue a run one after the other: iterations that are in metrics.jsonl are known, and
    W&B sees one run.

    Raises:
        TrackingError: `tracking.wandb: online`, and W&B has no API key.
    """

    def __init__(self, run_directory: Path, config: Config) -> None:
        self._directory = run_directory
        self._store = RunStore(str(run_directory))
        self._wandb = _start_wandb(self._store, run_directory, config)
        self._tensorboard = EventFileWriter(str(run_directory / "tensorboard")) if config.tracking.tensorboard else None

    def log(self, iteration: int, metrics: dict[str, float]) -> None:
        """Write an iteration's metrics; nothing if it was written before, by whatever process.

        Raises:
            ValueError: a metric is not finite; names it.
        """
        unfit = sorted(key for key, value in metrics.items() if not math.isfinite(value))
        if unfit:
            raise ValueError(f"metrics of iteration {iteration} are not finite: {', '.join(unfit)}")
        if any(row["iteration"] == iteration for row in read_metrics(self._directory)):
            return
        if self._tensorboard is not None:
            scalars = Summary(value=[Summary.Value(tag=key, simple_value=value) for key, value in metrics.items()])
            self._tensorboard.add_event(Event(wall_time=time.time(), step=iteration, summary=scalars))
            self._tensorboard.flush()
        if self._wandb is not None:
            self._wandb.log(metrics, step=iteration)
        # Last, because the line says that the iteration was logged.
        self._store.append_line(METRICS_FILE, json.dumps({"iteration": iteration, **metrics}))

    def close(self) -> None:
        """Finish the W&B run and close the files."""
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()


def _start_wandb(store: RunStore, run_directory: Path, config: Config) -> wandb.Run | None:
    mode = config.tracking.wandb
    if mode == "off":
        return None
    import wandb

    if mode == "online" and not wandb.login(prompt=False):
        raise TrackingError(
            "tracking.wandb is online, but Weights & Biases has no API key: set WANDB_API_KEY or run `wandb login`; "
            "tracking.wandb=offline needs none"
        )
    return wandb.init(
        project=config.tracking.wandb_project,
        name=config.run,
        id=store.run_id,
        dir=run_directory,
        mode=mode,
        resume="allow" if mode == "online" else None,
        config=config.model_dump(mode="json"),
        reinit="create_new",
        settings=wandb.Settings(silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True),
    )
