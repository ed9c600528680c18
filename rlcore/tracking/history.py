"""What a run directory tells of its past: configuration, metrics, finished stages."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rlcore.compose import load
from rlcore.config import Config
from rlcore.plan import plan_iteration
from rlcore.store import LedgerEntry, RunStore

METRICS_FILE = "metrics.jsonl"


@dataclass(frozen=True, slots=True)
class RunHistory:
    """A run as far as it has come."""

    config: Config
    metrics: list[dict[str, float]]
    """One row per iteration in the order of iterations, with the key `iteration`; 0 is the untrained policy."""
    ledger: list[LedgerEntry]

    @property
    def finished_iterations(self) -> int:
        """How many iterations have all their stages behind them."""
        newest = max((entry.iteration for entry in self.ledger), default=0)
        return newest if newest == 0 or not self._unfinished(newest) else newest - 1

    @property
    def running_stages(self) -> dict[str, float]:
        """The stages whose inputs are there and whose outputs are not, with the Unix time since when.

        Empty where the run is complete, and before its first stage is finished.
        """
        iteration = self.finished_iterations + 1
        if iteration > self.config.iterations or not self.ledger:
            return {}
        ends = {entry.stage: entry.finished_at for entry in self.ledger if entry.iteration == iteration}
        earlier = (entry.finished_at for entry in self.ledger if entry.iteration < iteration)
        before = max(earlier, default=self.ledger[0].started_at)
        inputs = plan_iteration(self.config, iteration).inputs
        return {
            stage: max((ends[name] for name in inputs[stage]), default=before)
            for stage in self._unfinished(iteration)
            if ends.keys() >= set(inputs[stage])
        }

    @property
    def seconds(self) -> float:
        """Wall time spent in iterations. Time between them, when the run stood still, is not in it."""
        return sum(end - start for start, end in self._spans.values())

    @property
    def seconds_per_iteration(self) -> float | None:
        """Mean over the finished iterations; None before the first."""
        spans = [end - start for number, (start, end) in self._spans.items() if 0 < number <= self.finished_iterations]
        return sum(spans) / len(spans) if spans else None

    def _unfinished(self, iteration: int) -> list[str]:
        finished = {entry.stage for entry in self.ledger if entry.iteration == iteration}
        return [stage for stage in plan_iteration(self.config, iteration).stages if stage not in finished]

    @property
    def _spans(self) -> dict[int, tuple[float, float]]:
        """Start of the first and end of the last stage of each iteration, Unix time."""
        spans: dict[int, tuple[float, float]] = {}
        for entry in self.ledger:
            start, end = spans.get(entry.iteration, (entry.started_at, entry.finished_at))
            spans[entry.iteration] = min(start, entry.started_at), max(end, entry.finished_at)
        return spans


def read_history(run_directory: Path) -> RunHistory:
    """
    Raises:
        FileNotFoundError: no run is there (no config.yaml).
    """
    config = run_directory / "config.yaml"
    if not config.is_file():
        raise FileNotFoundError(f"{run_directory} is not a run directory: it has no config.yaml")
    return RunHistory(load(config), read_metrics(run_directory), RunStore(str(run_directory)).ledger())


def forget_row(store: RunStore, iteration: int) -> None:
    """Take an iteration out of metrics.jsonl: it will be logged anew."""
    rows = read_metrics(store.directory)
    kept = [row for row in rows if row["iteration"] != iteration]
    if len(kept) < len(rows):
        store.write_bytes(METRICS_FILE, "".join(json.dumps(row) + "\n" for row in kept).encode())


def read_metrics(run_directory: Path) -> list[dict[str, float]]:
    """The rows of metrics.jsonl by iteration; none where the file is not there yet. Half a last line is not a row."""
    path = run_directory / METRICS_FILE
    if not path.is_file():
        return []
    lines = path.read_text().split("\n")[:-1]
    return sorted((json.loads(line) for line in lines), key=lambda row: row["iteration"])
