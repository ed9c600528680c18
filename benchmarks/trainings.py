"""A whole training for a benchmark: `rlvr train`, and what its ledger and metrics say of it."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlcore.store import RunStore
from rlcore.tracking.history import read_metrics


@dataclass(frozen=True, slots=True)
class Training:
    """A training, as far as it went."""

    seconds: list[float]
    """Of each step, evaluations and checkpoints left out."""
    accuracies: dict[int, float]
    """Held-out, by the step after which it was measured."""

    @property
    def step_seconds(self) -> float:
        """The median, without the first step, in which things start."""
        return statistics.median(self.seconds[1:])

    def seconds_to(self, accuracy: float) -> float | None:
        """Training time until an evaluation reached it; None if none did."""
        steps = [step for step, reached in sorted(self.accuracies.items()) if reached >= accuracy]
        return sum(self.seconds[: steps[0]]) if steps else None


def train(preset: str, run: str, runs: Path, settings: Sequence[str]) -> Training:
    """Train, or go on with a training of that name, to its end.

    Raises:
        CalledProcessError: it failed, and has said how.
    """
    rlvr = Path(sys.executable).parent / "rlvr"
    settings = [f"runs_dir={runs}", f"run={run}", "tracking.wandb=off", *settings]
    subprocess.run([rlvr, "train", preset, *settings], check=True)
    store = RunStore(str(runs / run))
    seconds, ledger = [], store.ledger()
    for iteration in range(1, max(entry.iteration for entry in ledger) + 1):
        before = [entry.finished_at for entry in ledger if entry.iteration == iteration - 1]
        during = [entry for entry in ledger if entry.iteration == iteration]
        start = max(before, default=min(entry.started_at for entry in during))
        seconds.append(next(entry.finished_at for entry in during if entry.stage == "sync") - start)
    measured = {
        int(row["iteration"]): row["eval/accuracy"] for row in read_metrics(store.directory) if "eval/accuracy" in row
    }
    return Training(seconds, measured)
