"""What a run directory tells of its past: configuration, metrics, finished stages."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rlcore.compose import load
from rlcore.config import Config
from rlcore.plan import plan_iteration
from rlcore.store import LedgerEntry, RunStore, StoreError

METRICS_FILE = "metrics.jsonl"

UNREADABLE_ROW = "delete the line, and run its iteration again: its stages are done, and it is logged anew"
"""What the user can do about a line that is no row."""


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
    """The rows of metrics.jsonl by iteration; none where the file is not there yet. Half a last line is not a row.

    Raises:
        StoreError: a line is no row; says which, and what to do.
    """
    path = run_directory / METRICS_FILE
    if not path.is_file():
        return []
    rows = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            rows.append(parse_row(line))
        except ValueError as error:
            raise StoreError(f"{path}:{number} cannot be read: {error}; {UNREADABLE_ROW}") from None
    return sorted(rows, key=lambda row: row["iteration"])


def parse_row(line: bytes) -> dict[str, float]:
    """One line of metrics.jsonl.

    Raises:
        ValueError: it is none.
    """
    row = json.loads(line)
    if not isinstance(row, dict) or not isinstance(row.get("iteration"), int):
        raise ValueError("a row is a JSON object whose iteration is a whole number")
    return row
