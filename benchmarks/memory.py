"""Memory of a whole training: every process it starts, sampled while it runs.

    python benchmarks/memory.py [--quick] [--samples FILE] [key=value ...]

Trains the arithmetic mix for 40 iterations (or what the overrides say). Sizes are proportional set sizes, so that
shared pages count once. Growth is measured from the first iteration on by which every stage of the run has run once
and caches are full. It is each process's own: that a process appears is no growth, and is told by itself.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import psutil
from rich.console import Console
from rich.table import Table

from rlcore.store import LedgerEntry, RunStore

AIM_GB = 10.0
AIM_GROWTH_MB = 1.0
"""An iteration: a thousand of them then cost one GB."""
SAMPLE_SECONDS = 2.0
WARM_UP = 5
FEWEST = 5
"""Iterations that a process is seen in, before its growth means anything."""
MB, GB = 1e6, 1e9

READINGS = {"time": pl.Float64, "pid": pl.Int64, "command": pl.String, "bytes": pl.Int64}
"""One row per process and look: Unix time, and the proportional set size."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two small iterations with one engine, no growth")
    parser.add_argument("--samples", metavar="FILE", help="write every process's size at every look to a CSV file")
    parser.add_argument("overrides", nargs="*", help="of configs/arithmetic.yaml")
    arguments = parser.parse_args()
    quick = ["iterations=2", "rollout.rollout_batch_size=2", "eval_steps=0", "save_steps=0", "tracking.wandb=off"]
    quick += ["hardware.engines=1", "hardware.engine_threads=2"]
    settings = quick if arguments.quick else ["iterations=40"]
    with tempfile.TemporaryDirectory() as runs:
        command = [str(Path(sys.executable).parent / "rlvr"), "train", "arithmetic", f"runs_dir={runs}", "run=memory"]
        training = subprocess.Popen([*command, *settings, *arguments.overrides])
        readings = watch(training)
        if training.returncode != 0:
            sys.exit(training.returncode)
        ledger = RunStore(f"{runs}/memory").ledger()
    samples = by_iteration(readings, ledger)
    if arguments.samples:
        samples.write_csv(arguments.samples)
    report(samples, settled_after(ledger))


def watch(training: subprocess.Popen[bytes]) -> pl.DataFrame:
    """READINGS until the training ends."""
    rows: list[tuple[float, int, str, int]] = []
    while training.poll() is None:
        rows += look(psutil.Process(training.pid))
        time.sleep(SAMPLE_SECONDS)
    return pl.DataFrame(rows, schema=READINGS, orient="row")


def look(root: psutil.Process) -> list[tuple[float, int, str, int]]:
    """A row of READINGS for a process and for each below it."""
    rows, now = [], time.time()
    for process in [root, *root.children(recursive=True)]:
        try:
            rows.append((now, process.pid, " ".join(process.cmdline()), process.memory_full_info().pss))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return rows


def kind_of(command: str) -> str:
    """What a process is, from its command line."""
    kinds = {
        "VLLM": "vLLM engine core",
        "ray::EngineProcess": "vLLM actor",
        "ray::SchedulerProcess": "scheduler",
        "ray::RankProcess": "trainer",
        "ray::GradersProcess": "grader actor",
        "ray::DashboardAgent": "Ray",
        "ray::RuntimeEnvAgent": "Ray",
        "ray::": "stages on Ray",
        "default_worker": "idle Ray workers",
        "rewards.worker": "graders",
        "prefect": "Prefect server",
        "raylet": "Ray",
        "gcs_server": "Ray",
        "ray": "Ray",
        "rlvr": "flow",
    }
    return next((kind for mark, kind in kinds.items() if mark in command), "other")


def by_iteration(readings: pl.DataFrame, ledger: Sequence[LedgerEntry]) -> pl.DataFrame:
    """READINGS with `iteration`, that during which it was taken, and `kind`, that of the process.

    A process is what it last was: Ray's workers are idle before they are anything.
    """
    ends = pl.DataFrame([(e.finished_at, e.iteration) for e in ledger], schema=["time", "iteration"], orient="row")
    ends = ends.group_by("iteration").agg(pl.col("time").max()).sort("time")
    last = readings.group_by("pid").agg(pl.col("command").sort_by("time").last())
    kinds = last.select("pid", kind=pl.col("command").map_elements(kind_of, return_dtype=pl.String))
    return (
        readings.sort("time")
        .join_asof(ends, on="time", strategy="forward")
        .with_columns(pl.col("iteration").forward_fill())
        .join(kinds, on="pid", maintain_order="left")
    )


def settled_after(ledger: Sequence[LedgerEntry]) -> int:
    """The iteration by which every stage of the run has run once, or the last of the warm-up.

    The evaluation of the untrained policy is none of these: no other stage runs beside it.
    """
    first: dict[str, int] = {}
    for entry in ledger:
        if entry.iteration > 0:
            first.setdefault(entry.stage, entry.iteration)
    return max([WARM_UP, *first.values()])


def growths(samples: pl.DataFrame, settled: int) -> pl.DataFrame:
    """One row per process: `growth`, bytes an iteration; `appeared`, the iteration, null if not after `settled`.

    The first iteration of a process does not count, for it fills then. One that is seen in few has a growth of 0.
    """
    first = pl.col("iteration").min().over("pid")
    sizes = (
        samples.filter(pl.col("iteration") > pl.max_horizontal(first, settled))
        .group_by("pid", "iteration")
        .agg(pl.col("bytes").median())
        .sort("iteration")
        .group_by("pid")
        .agg("iteration", "bytes")
    )
    slopes = {pid: slope(times, values) for pid, times, values in sizes.iter_rows() if len(times) >= FEWEST}
    processes = samples.group_by("pid", "kind", maintain_order=True).agg(pl.col("iteration").min().alias("appeared"))
    return processes.with_columns(
        growth=pl.col("pid").replace_strict(slopes, default=0.0, return_dtype=pl.Float64),
        appeared=pl.when(pl.col("appeared") > settled).then("appeared"),
    )


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """Median of the slopes between all pairs (Sen, 1968): steps and peaks in few of the values do not show."""
    i, j = np.triu_indices(len(times), 1)
    x, y = np.asarray(times, float), np.asarray(values, float)
    return float(np.median((y[j] - y[i]) / (x[j] - x[i])))


def report(samples: pl.DataFrame, settled: int) -> None:
    """Print the table, the processes that appeared late, and the last line."""
    peak_time, peak = samples.group_by("time").agg(pl.col("bytes").sum()).sort("bytes").row(-1)
    processes = growths(samples, settled)
    kinds = (
        samples.group_by("kind", "time")
        .agg(pl.len(), pl.col("bytes").sum())
        .group_by("kind")
        .agg(
            pl.col("len").max(),
            pl.col("bytes").filter(pl.col("time") == peak_time).sum().alias("at_peak"),
            pl.col("bytes").max().alias("own_peak"),
        )
        .join(processes.group_by("kind").agg(pl.col("growth").sum()), on="kind")
        .sort("own_peak", descending=True)
    )
    table = Table("processes", "most at a time", "at the peak, GB", "their own peak, GB", "growth, MB an iteration")
    for kind, number, at_peak, own_peak, growth in kinds.iter_rows():
        table.add_row(kind, f"{number}", f"{at_peak / GB:.2f}", f"{own_peak / GB:.2f}", f"{growth / MB:.2f}")
    Console().print(table)

    seen = samples.group_by("pid").agg(pl.col("iteration").max().alias("last"), pl.col("bytes").max())
    late = processes.drop_nulls("appeared").join(seen, on="pid", maintain_order="left")
    for pid, kind, appeared, last, size in late.select("pid", "kind", "appeared", "last", "bytes").iter_rows():
        print(f"appeared in iteration {appeared}: {kind}, process {pid}, up to {size / GB:.2f} GB, last seen in {last}")

    measured = samples.select(pl.col("iteration").max()).item() - settled
    total = processes.select(pl.col("growth").sum()).item()
    growth = f"growing by {total / MB:.1f} MB an iteration (aim ≤ {AIM_GROWTH_MB:.0f} MB)"
    unmeasured = f"growth not measured: that takes {FEWEST} iterations after iteration {settled}"
    print(
        f"memory peak {peak / GB:.2f} GB (aim < {AIM_GB:.0f} GB), "
        + (f"{growth} over the last {measured}" if measured >= FEWEST else unmeasured)
    )


if __name__ == "__main__":
    main()
