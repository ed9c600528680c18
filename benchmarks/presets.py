"""Every preset of configs/algorithm/ trained on the arithmetic mix, small and with one seed: a table.

    python benchmarks/presets.py [--iterations 30] [--runs-dir DIRECTORY] [PRESET ...]

Writes the table into docs/algorithms.md. A run that is there already is not trained again, so the program can be
interrupted and continued.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from rlcore.catalogue import PRESETS
from rlcore.compose import REPOSITORY
from rlcore.store import RunStore
from rlcore.tracking.history import read_metrics

PAGE = REPOSITORY / "docs" / "algorithms.md"
BEGIN, END = "<!-- presets:begin -->", "<!-- presets:end -->"
PROMPTS = 8
HEAD = "| preset | held-out accuracy | mean KL per update | entropy at the end | seconds |\n|---|---|---:|---:|---:|"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--runs-dir", default="runs/presets")
    names = sorted(path.stem for path in PRESETS.glob("*.yaml"))
    parser.add_argument("presets", nargs="*", default=names, metavar="PRESET", help=f"of {', '.join(names)}")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.presets:
        train(name, arguments.runs_dir, arguments.iterations)
        rows.append(row(name, RunStore(f"{arguments.runs_dir}/{name}")))
        print(rows[-1], flush=True)
        note = f"{arguments.iterations} iterations of {PROMPTS} prompts with 8 responses each, seed 0, two cores."
        write("\n".join([note, "", HEAD, *rows]))


def train(name: str, runs_dir: str, iterations: int) -> None:
    """Train the preset to the end, or from where it is."""
    settings = [f"algorithm={name}", f"run={name}", f"runs_dir={runs_dir}", f"iterations={iterations}"]
    settings += [f"rollout.rollout_batch_size={PROMPTS}", f"eval_steps={iterations}", "save_steps=0"]
    settings += ["tracking.wandb=off"]
    subprocess.run([Path(sys.executable).parent / "rlvr", "train", "arithmetic", *settings], check=True)


def row(name: str, store: RunStore) -> str:
    """One line of the table: accuracies before and after, and what the updates reported."""
    metrics = read_metrics(store.directory)
    before, after = (one["eval/accuracy"] for one in (metrics[0], metrics[-1]))
    trained = metrics[1:]
    kl = sum(one["train/approx_kl_k3"] for one in trained) / len(trained)
    seconds = sum(sum(value for key, value in one.items() if key.startswith("seconds/")) for one in trained)
    entropy = trained[-1]["train/entropy"]
    return f"| {name} | {before:.2f} → {after:.2f} | {kl:.4f} | {entropy:.2f} | {seconds:.0f} |"


def write(table: str) -> None:
    """Put the table between the marks of the page."""
    text = PAGE.read_text()
    head, tail = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    PAGE.write_text(f"{head}\n{table}\n{tail}")


if __name__ == "__main__":
    main()
