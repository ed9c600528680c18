"""Every preset of configs/algorithm/ trained on the arithmetic mix, small and with one seed: a table.

    python benchmarks/presets.py [--quick] [--iterations 30] [--side-by-side 1] [--runs-dir DIRECTORY] [PRESET ...]

Writes the table into docs/algorithms.md. A run that is there already is not trained again, so the program can be
interrupted and continued. Side by side, each run has its share of the cores, and 9 GB of memory to itself, a critic 4
more. The quick form trains one preset on very little, and writes nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rlcore.catalogue import PRESETS
from rlcore.compose import REPOSITORY
from rlcore.store import RunStore
from rlcore.tracking.history import read_metrics

PAGE = REPOSITORY / "docs" / "algorithms.md"
BEGIN, END = "<!-- presets:begin -->", "<!-- presets:end -->"
HELD_OUT = REPOSITORY / "configs" / "data" / "arithmetic.held_out.jsonl"
PROMPTS = 8
QUICK, QUICK_HELD_OUT = "grpo", 8
LAST = 5
COLUMNS = ("preset", "held-out accuracy", "KL", "entropy", "seconds")
HEAD = f"| {' | '.join(COLUMNS)} |\n|---|---|---:|---:|---:|"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK}, two iterations of two prompts")
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--side-by-side", type=int, default=1, metavar="RUNS")
    parser.add_argument("--runs-dir", default="runs/presets")
    names = sorted(path.stem for path in PRESETS.glob("*.yaml"))
    parser.add_argument("presets", nargs="*", default=names, metavar="PRESET", help=f"of {', '.join(names)}")
    arguments = parser.parse_args()
    if arguments.quick:
        with tempfile.TemporaryDirectory() as runs:
            held_out = Path(runs) / "held_out.jsonl"
            held_out.write_text("".join(HELD_OUT.read_text().splitlines(keepends=True)[:QUICK_HELD_OUT]))
            settings = ["rollout.rollout_batch_size=2", f"data.held_out=[{held_out}]", "hardware.engines=1"]
            store = train(QUICK, runs, 2, *settings)
            print("\n".join([HEAD, row(store), figure([store])]))
        return
    side_by_side = arguments.side_by_side
    threads = max(1, (os.cpu_count() or 1) // side_by_side)
    share = [f"hardware.{process}_threads={threads}" for process in ("trainer", "engine")]
    with ThreadPoolExecutor(side_by_side) as lanes:
        stores = list(
            lanes.map(lambda name: train(name, arguments.runs_dir, arguments.iterations, *share), arguments.presets)
        )
    note = (
        f"{arguments.iterations} iterations of {PROMPTS} prompts with 8 responses each, seed 0, "
        f"{side_by_side} runs side by side with {threads} core{'s' * (threads > 1)} each."
    )
    write("\n".join([note, "", HEAD, *map(row, stores)]))
    print("\n".join([HEAD, *map(row, stores), figure(stores)]))


def train(name: str, runs_dir: str, iterations: int, *settings: str) -> RunStore:
    """Train the preset to the end, or from where it is; its run."""
    common = [f"algorithm={name}", f"run={name}", f"runs_dir={runs_dir}", f"iterations={iterations}"]
    common += [f"rollout.rollout_batch_size={PROMPTS}", f"eval_steps={iterations}", "save_steps=0"]
    command = [
        str(Path(sys.executable).parent / "rlvr"),
        "train",
        "arithmetic",
        *common,
        "tracking.wandb=off",
        *settings,
    ]
    subprocess.run(command, check=True)
    return RunStore(f"{runs_dir}/{name}")


def accuracies(store: RunStore) -> tuple[float, float]:
    """On the held-out prompts, before and after."""
    metrics = read_metrics(store.directory)
    return metrics[0]["eval/accuracy"], metrics[-1]["eval/accuracy"]


def figure(stores: Sequence[RunStore]) -> str:
    """The last line."""
    raised = sum(after > before for before, after in map(accuracies, stores))
    return f"presets: {raised} of {len(stores)} raised held-out accuracy (aim: all)"


def row(store: RunStore) -> str:
    """One line of the table: accuracies before and after, what the updates reported, the median of the stages' time."""
    before, after = accuracies(store)
    iterations = read_metrics(store.directory)[1:]
    # Where every group was filtered out, nothing was trained, and there is no entropy to tell.
    updates = [one for one in iterations if one["train/num_tokens"]]
    kl = statistics.mean(one["train/approx_kl_k3"] for one in updates)
    entropy = statistics.mean(one["train/entropy"] for one in updates[-LAST:])
    stages = [[value for key, value in one.items() if key.startswith("seconds/")] for one in iterations]
    seconds = statistics.median(map(sum, stages))
    return f"| {store.directory.name} | {before:.2f} → {after:.2f} | {kl:.4f} | {entropy:.2f} | {seconds:.1f} |"


def write(table: str) -> None:
    """Put the table between the marks of the page."""
    text = PAGE.read_text()
    head, tail = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    PAGE.write_text(f"{head}\n{table}\n{tail}")


if __name__ == "__main__":
    main()
