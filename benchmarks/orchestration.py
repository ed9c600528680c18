"""What Prefect, Ray and the batches on disk cost: iteration wall time minus time inside engines and graders.

    python benchmarks/orchestration.py [--quick] [--run DIRECTORY]

Trains the arithmetic mix for some iterations, or takes a run that is there. Iterations with an evaluation or a
checkpoint are left out, so that stages follow one another and their engine times add up, and so is the first, in
which processes start. Engine time is what a stage waits for an actor, Ray's call of it included.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rlcore.plan import INPUTS
from rlcore.store import LedgerEntry, RunStore

AIM_SECONDS, AIM_SHARE = 0.5, 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one measured iteration of a small batch, with one engine")
    parser.add_argument("--run", help="directory of a run that is there")
    arguments = parser.parse_args()
    if arguments.run:
        report(RunStore(arguments.run).ledger())
        return
    iterations, size = (3, 2) if arguments.quick else (10, 16)
    with tempfile.TemporaryDirectory() as runs:
        settings = [f"runs_dir={runs}", "run=orchestration", f"iterations={iterations}", "eval_steps=0", "save_steps=0"]
        settings.append(f"rollout.rollout_batch_size={size}")
        if arguments.quick:
            settings += ["hardware.engines=1", "hardware.engine_threads=2", "tracking.wandb=off"]
        subprocess.run([Path(sys.executable).parent / "rlvr", "train", "arithmetic", *settings], check=True)
        report(RunStore(f"{runs}/orchestration").ledger())


def plain_iterations(ledger: list[LedgerEntry]) -> list[int]:
    """Those after the first whose stages follow one another, and that another one follows."""
    last = max(entry.iteration for entry in ledger)
    parallel = {entry.iteration for entry in ledger if entry.stage in ("evaluate", "checkpoint")}
    return [number for number in range(2, last) if number not in parallel]


def report(ledger: list[LedgerEntry]) -> None:
    """Print the table and the last line."""
    measured = plain_iterations(ledger)
    table = Table("stage", "seconds", "in engines", "around them", title=f"medians of {len(measured)} iterations")
    for stage in INPUTS:
        entries = [entry for entry in ledger if entry.stage == stage and entry.iteration in measured]
        if entries:
            seconds, engine = (statistics.median(getattr(e, f) for e in entries) for f in ("seconds", "engine_seconds"))
            table.add_row(stage, f"{seconds:.3f}", f"{engine:.3f}", f"{seconds - engine:.3f}")
    walls, engines = zip(*(wall_and_engine_seconds(ledger, number) for number in measured), strict=True)
    between = statistics.median(
        wall - sum(e.seconds for e in ledger if e.iteration == number)
        for wall, number in zip(walls, measured, strict=True)
    )
    table.add_row("between stages and iterations", "", "", f"{between:.3f}")
    Console().print(table)
    overheads = [wall - engine for wall, engine in zip(walls, engines, strict=True)]
    seconds, share = (
        statistics.median(overheads),
        statistics.median(o / w for o, w in zip(overheads, walls, strict=True)),
    )
    print(
        f"orchestration {seconds:.2f} s, {share:.1%} of an iteration of {statistics.median(walls):.1f} s "
        f"(aim ≤ {AIM_SECONDS} s, ≤ {AIM_SHARE:.0%})"
    )


def wall_and_engine_seconds(ledger: list[LedgerEntry], number: int) -> tuple[float, float]:
    """From the start of an iteration's first stage to that of the next iteration's; the part inside engines."""
    starts = {entry.iteration: entry.started_at for entry in ledger if entry.stage == "sample"}
    engine = sum(entry.engine_seconds for entry in ledger if entry.iteration == number)
    return starts[number + 1] - starts[number], engine


if __name__ == "__main__":
    main()
