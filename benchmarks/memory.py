"""Memory of a whole training: every process it starts, sampled while it runs.

    python benchmarks/memory.py [--quick] [key=value ...]

Trains the arithmetic mix for 40 iterations (or what the overrides say) and adds up the proportional set sizes
of all its processes, so that shared pages count once. Growth is the slope over the iterations after the first
five, in which caches fill.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from rlcore.store import RunStore

AIM_GB = 10.0
SAMPLE_SECONDS = 2.0
WARM_UP = 5
MB, GB = 1e6, 1e9


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at all processes."""

    time: float
    bytes_by_name: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.bytes_by_name.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="eight iterations of small batches")
    parser.add_argument("overrides", nargs="*", help="of configs/arithmetic.yaml")
    arguments = parser.parse_args()
    settings = ["iterations=8", "rollout.rollout_batch_size=2"] if arguments.quick else ["iterations=40"]
    with tempfile.TemporaryDirectory() as runs:
        command = [str(Path(sys.executable).parent / "rlvr"), "train", "arithmetic", f"runs_dir={runs}", "run=memory"]
        training = subprocess.Popen([*command, *settings, *arguments.overrides])
        samples = watch(training)
        if training.returncode != 0:
            sys.exit(training.returncode)
        ends = {entry.iteration: entry.finished_at for entry in RunStore(f"{runs}/memory").ledger()}
    report(samples, [ends[number] for number in sorted(ends)])


def watch(training: subprocess.Popen[bytes]) -> list[Sample]:
    """Samples until the training ends."""
    samples = []
    while training.poll() is None:
        samples.append(look(psutil.Process(training.pid)))
        time.sleep(SAMPLE_SECONDS)
    return samples


def look(root: psutil.Process) -> Sample:
    sizes: dict[str, int] = {}
    for process in [root, *root.children(recursive=True)]:
        try:
            name, size = label(process.cmdline()), process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        sizes[name] = sizes.get(name, 0) + size
    return Sample(time.time(), sizes)


def label(command: Sequence[str]) -> str:
    """What a process is, from its command line."""
    line = " ".join(command)
    kinds = {
        "VLLM": "vLLM engine core",
        "ray::AsyncResident": "vLLM actor",
        "ray::Resident": "trainer and grader actors",
        "ray::": "stages on Ray",
        "default_worker": "idle Ray workers",
        "rewards.worker": "graders",
        "prefect": "Prefect server",
        "raylet": "Ray",
        "gcs_server": "Ray",
        "ray": "Ray",
        "rlvr": "flow",
    }
    return next((kind for mark, kind in kinds.items() if mark in line), "other")


def report(samples: list[Sample], ends: list[float]) -> None:
    """Print the table and the last line."""
    peak = max(samples, key=lambda sample: sample.total)
    spans = list(zip(ends[WARM_UP:], ends[WARM_UP + 1 :], strict=False))
    during = [found for start, end in spans if (found := [s for s in samples if start < s.time <= end])]
    table = Table("processes", "at the peak, GB", "their own peak, GB", "growth, MB an iteration")
    for name in sorted(peak.bytes_by_name, key=lambda name: -peak.bytes_by_name[name]):
        own = max(sample.bytes_by_name.get(name, 0) for sample in samples)
        growth = slope([max(s.bytes_by_name.get(name, 0) for s in iteration) for iteration in during])
        table.add_row(name, f"{peak.bytes_by_name[name] / GB:.2f}", f"{own / GB:.2f}", f"{growth / MB:.1f}")
    Console().print(table)
    growth = slope([max(sample.total for sample in iteration) for iteration in during])
    print(
        f"memory peak {peak.total / GB:.2f} GB (aim < {AIM_GB:.0f} GB), growing by {growth / MB:.1f} MB an iteration "
        f"over the last {len(during)}"
    )


def slope(values: Sequence[int]) -> float:
    """Change from one value to the next, by least squares."""
    return float(np.polyfit(range(len(values)), values, 1)[0]) if len(values) > 1 else 0.0


if __name__ == "__main__":
    main()
