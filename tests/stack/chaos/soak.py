"""The soak: a long training in which processes are killed at random, and whether anything grows.

    python -m tests.stack.chaos.soak [ITERATIONS] [--every 20] [--samples FILE]

A tiny random model is trained by the deployment `train/local` under `rlvr up`. In every 20th iteration a random process
of a random class is killed at a random moment, and the flow run is retried as the dashboard does. After every
iteration memory (PSS), open files and number of all processes are noted. Growth is the slope of a linear fit: of
memory and files in each process's own, so that a process that was started again is another one; of the seconds of
iterations without those around a kill.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
import psutil
from rich.console import Console
from rich.table import Table

from rlcore.plan import INPUTS
from rlcore.pretrained import smollm2_directory
from rlcore.store import RunStore
from rlcore.tracking.history import METRICS_FILE, parse_row
from tests.stack.chaos.retrying import Retrying, processes_of
from tests.stack.conftest import save_tiny_llama
from tests.stack.pipeline import Up, store_of, tiny_training, up

SETTINGS = [
    *("run=soak", "eval_steps=10", "save_steps=10", "save_total_limit=1", "save_best=null"),
    *("trainer.learning_rate=1e-5", "tracking.wandb=off", "tracking.tensorboard=false"),
]
LOOK_SECONDS = 0.1
LONGEST_ROW = 1 << 16
"""Bytes of a row of metrics.jsonl, at most."""
STALLED_SECONDS = 600.0
"""So long without another iteration, the soak has failed."""
WARM_UP = 5
"""Iterations in which a process fills its caches."""
FILLS_SECONDS = {"prefect-server": 900.0}
"""And time, where that counts: Prefect's server keeps for a quarter of an hour what it has done."""
FEWEST = 10
"""Iterations that a process is seen in after these, before its growth means anything."""
AROUND_A_KILL = 3
"""Iterations from a kill on that say nothing about the time of one."""

SERVICES = ("prefect-server", "ray-head", "prefect-worker")
MARKS = {
    "VLLM": "engine core",
    "rlcore.rewards.worker": "grader",
    "ray::EngineProcess": "engine",
    "ray::SchedulerProcess": "scheduler",
    "ray::RankProcess": "trainer",
    "ray::GradersProcess": "graders",
    **{f"ray::{stage}": "stage" for stage in INPUTS},
    "ray::": "Ray worker",
    "default_worker": "Ray worker",
    "raylet": "Ray",
    "gcs_server": "Ray",
    "ray/": "Ray",
    "flows.supervisor": "supervisor",
    "prefect": "Prefect",
}
"""What is in a process's command line, and what it then is; the first that fits."""
VICTIMS = ("stage", "flow", "scheduler", "engine", "engine core", "graders", "grader", "trainer", *SERVICES)

BYTES, HANDLES, SECONDS, PROCESSES = "PSS, MB", "open files", "seconds an iteration", "processes"
ALLOWED = {BYTES: 5.0, HANDLES: 1.0, PROCESSES: 1.0}
"""Growth in 100 iterations that is none."""
ALLOWED_SHARE = 0.05
"""The same of the seconds, as a part of their median."""
ERRORS = 3.0
"""Standard errors that growth is beyond to be one."""

SAMPLES = {
    **{"iteration": pl.Int64, "time": pl.Float64, "kind": pl.String, "pid": pl.Int64},
    **{BYTES: pl.Float64, HANDLES: pl.Int64},
}


@dataclass
class Observed:
    """What was noted."""

    samples: list[tuple[int, float, str, int, float, int]] = field(default_factory=list)
    """Rows of SAMPLES: one for each process after each iteration."""
    seconds: dict[int, float] = field(default_factory=dict)
    """Of each iteration."""
    kills: list[tuple[int, str]] = field(default_factory=list)
    """Iteration and class of the process."""
    retries: int = 0


class Soak:
    """One training, and who disturbs it."""

    def __init__(self, running: Up, store: RunStore, flow_run: str, every: int, chance: random.Random) -> None:
        self._up = running
        self._store = store
        self._flow_run = flow_run
        self._every = every
        self._chance = chance
        self.observed = Observed()

    def run(self, most_retries: int) -> None:
        """Until the training is completed.

        Raises:
            TimeoutError: it stands still, or fails again and again.
        """
        retrying = Retrying(self._up, self._flow_run, most_retries)
        finished, last, due = 0, time.monotonic(), None
        while not retrying.look():
            time.sleep(LOOK_SECONDS)
            newest = self._newest()
            if newest > finished:
                now = time.monotonic()
                self.observed.seconds[newest] = (now - last) / (newest - finished)
                self._note(newest)
                finished, last = newest, time.monotonic()
                if finished % self._every == 0:
                    pause = self._chance.uniform(0.0, self.observed.seconds[newest])
                    due = (last + pause, self._chance.choice(VICTIMS))
            if due is not None and time.monotonic() >= due[0] and self._kill(due[1]):
                self.observed.kills.append((finished + 1, due[1]))
                due = None
            if time.monotonic() > last + STALLED_SECONDS:
                raise TimeoutError(f"no iteration after {finished} in {STALLED_SECONDS:.0f} s")
        self.observed.retries = retrying.presses

    def _newest(self) -> int:
        """The last iteration that was logged; of a long file only the end is read."""
        metrics = self._store.directory / METRICS_FILE
        if not metrics.is_file():
            return 0
        with open(metrics, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LONGEST_ROW))
            rows = file.read().split(b"\n")[:-1]
        return int(parse_row(rows[-1])["iteration"]) if rows else 0

    def _processes(self) -> list[tuple[str, psutil.Process]]:
        """Everything that this `rlvr up` has started, whoever's child it is by now, with what it is."""
        cache = self._up.environment["RLVR_CACHE"]
        services = {service.pid: service.name for service in self._up.services.processes}
        flow = {process.pid for process in processes_of(self._flow_run)}
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("RLVR_CACHE") == cache:
                    found.append((services.get(process.pid) or _kind_of(process, flow), process))
            except psutil.Error:
                continue
        return found

    def _note(self, iteration: int) -> None:
        for kind, process in self._processes():
            try:
                used = process.memory_full_info().pss / 1e6, process.num_fds()
            except psutil.Error:
                continue
            self.observed.samples.append((iteration, time.time(), kind, process.pid, *used))

    def _kill(self, victim: str) -> bool:
        """Whether there was one."""
        found = [process for kind, process in self._processes() if kind == victim]
        if not found:
            return False
        process = self._chance.choice(sorted(found, key=lambda process: process.pid))
        # Ray's head is a program that starts others.
        family = [process, *(process.children() if victim == "ray-head" else [])]
        for one in family:
            one.kill()
        print(f"{time.strftime('%H:%M:%S')} after iteration {self._newest()}: killed {victim}", flush=True)
        return True


def _kind_of(process: psutil.Process, flow: set[int]) -> str:
    command = " ".join([process.name(), *process.cmdline()])
    kind = next((kind for mark, kind in MARKS.items() if mark in command), "other")
    # What Ray starts for a flow has the flow's variables.
    return "flow" if process.pid in flow and kind in ("Prefect", "other") else kind


@dataclass(frozen=True)
class Growth:
    """What a measure grew by."""

    per_100: float
    error: float
    """Standard error of it."""
    level: float
    """Median."""
    seen: int
    """Iterations."""

    def beyond(self, allowed: float) -> bool:
        return self.per_100 > allowed and self.per_100 > ERRORS * self.error


def fit(series: list[tuple[list[int], list[float]]]) -> Growth:
    """Least squares of values against iterations, with one slope, and a level for each series."""
    x = np.concatenate([np.asarray(times, float) - np.mean(times) for times, _ in series])
    y = np.concatenate([np.asarray(values, float) - np.mean(values) for _, values in series])
    spread = float(x @ x)
    slope = float(x @ y) / spread
    residuals, freedom = y - slope * x, max(len(x) - len(series) - 1, 1)
    error = float(np.sqrt(residuals @ residuals / freedom / spread))
    level = float(np.median(np.concatenate([values for _, values in series])))
    return Growth(100 * slope, 100 * error, level, len({time for times, _ in series for time in times}))


def by_process(samples: pl.DataFrame, measure: str, fills: float) -> list[tuple[list[int], list[float]]]:
    """One series for each process that was seen long enough, its warm-up left out.

    Args:
        fills: seconds that this takes, if it is more than WARM_UP iterations.
    """
    is_warm = pl.col("iteration") >= pl.col("iteration").min().over("pid") + WARM_UP
    settled = samples.filter(is_warm & (pl.col("time") >= pl.col("time").min().over("pid") + fills))
    series = [
        (rows["iteration"].to_list(), rows[measure].to_list())
        for _, rows in settled.sort("iteration").group_by("pid", maintain_order=True)
    ]
    return [(times, values) for times, values in series if len(times) >= FEWEST]


def growths(observed: Observed) -> dict[tuple[str, str], Growth]:
    """By measure and class of process, where there is enough to tell."""
    samples = pl.DataFrame(observed.samples, schema=SAMPLES, orient="row")
    disturbed = {number + after for number, _ in observed.kills for after in range(AROUND_A_KILL)}
    calm = [number for number in observed.seconds if number > WARM_UP and number not in disturbed]
    found = {}
    if len(calm) >= FEWEST:
        found[SECONDS, "all"] = fit([(calm, [observed.seconds[number] for number in calm])])
        counts = Counter(samples["iteration"].to_list())
        found[PROCESSES, "all"] = fit([(calm, [float(counts[number]) for number in calm])])
    for (kind,), rows in samples.group_by("kind", maintain_order=True):
        for measure in (BYTES, HANDLES):
            if series := by_process(rows, measure, FILLS_SECONDS.get(str(kind), 0.0)):
                found[measure, str(kind)] = fit(series)
    return found


def report(observed: Observed, updates: int) -> bool:
    """Print the table and the last line; whether nothing grew."""
    table = Table("measure", "of", "median", "growth per 100 iterations", "± error", "iterations", box=None)
    grew = []
    for (measure, kind), growth in growths(observed).items():
        allowed = ALLOWED.get(measure, ALLOWED_SHARE * growth.level)
        numbers = (f"{growth.level:.2f}", f"{growth.per_100:+.3f}", f"{growth.error:.3f}", f"{growth.seen}")
        table.add_row(measure, kind, *numbers)
        if growth.beyond(allowed):
            grew.append(f"{measure} of {kind} by {growth.per_100:.2f} per 100 iterations")
    Console(width=120).print(table)
    victims = ", ".join(f"{victim} ×{count}" for victim, count in Counter(v for _, v in observed.kills).most_common())
    print(f"killed: {victims or 'nothing'}; Retry pressed {observed.retries} times")
    iterations = max(observed.seconds, default=0)
    outcome = "; ".join(grew) or "nothing grew"
    print(f"soak: {iterations} iterations, {len(observed.kills)} kills, updates {updates}, {outcome}")
    return not grew and updates == iterations


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("iterations", nargs="?", type=int, default=1000)
    parser.add_argument("--every", type=int, default=20, metavar="ITERATIONS", help="between two kills")
    parser.add_argument("--seed", type=int, default=0, help="of the kills")
    parser.add_argument("--samples", metavar="FILE", help="write what was noted of every process to a CSV file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as scratch:
        directory = Path(scratch)
        model = save_tiny_llama(directory / "model", tokenizer_from=smollm2_directory(), seed=0)
        overrides = [*tiny_training(directory, model), *SETTINGS, f"iterations={arguments.iterations}"]
        store = store_of(overrides, "soak")
        with up(directory / "cache") as running:
            flow_run = running.start_deployment(overrides, "train/local")
            soak = Soak(running, store, flow_run, arguments.every, random.Random(arguments.seed))
            try:
                soak.run(most_retries=2 * arguments.iterations // arguments.every + 2)
            except TimeoutError as error:
                print(f"the training did not go on: {error}")
            except KeyboardInterrupt:
                print("interrupted: what was noted so far")
        updates = [entry.iteration for entry in store.ledger() if entry.stage == "update"]
    if arguments.samples:
        pl.DataFrame(soak.observed.samples, schema=SAMPLES, orient="row").write_csv(arguments.samples)
    once = len(updates) == len(set(updates))
    nothing_grew = report(soak.observed, len(updates))
    return 0 if nothing_grew and once and len(updates) == arguments.iterations else 1


if __name__ == "__main__":
    sys.exit(main())
