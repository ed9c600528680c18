"""Real asynchronous trainings beside the synchronous one: held-out accuracy after as many iterations, and the time.

    python -m benchmarks.asynchronous [--quick] [--runs DIRECTORY]

SmolLM2 on the arithmetic mix, 16 iterations. First the preset's algorithm at α = 0, 1 and 2 with three seeds each; then
the losses that are made for old responses at α = 2, with the first seed. With --runs, trainings are kept there, and
those that are there are not done again.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.trainings import Training, train
from rlcore.store import RunStore
from rlcore.tracking.history import read_metrics

RATIOS = (0, 1, 2)
LOSSES = {
    "decoupled_ppo": ["algorithm=decoupled_ppo"],
    "topr": ["algorithm=topr"],
    "tis_roll": ["algorithm.policy_loss=tis_roll"],
    "cispo": ["algorithm=cispo"],
}
"""Beside the preset's own, `grpo`."""
QUICK = ["iterations=2", "rollout.rollout_batch_size=2", "eval_steps=0", "hardware.engines=1"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="α = 2 alone, two iterations of two prompts, one engine")
    parser.add_argument("--runs", type=Path, help="a directory to keep the trainings in")
    arguments = parser.parse_args()
    seeds = (0,) if arguments.quick else (0, 1, 2)
    ratios = (2,) if arguments.quick else RATIOS
    settings = QUICK if arguments.quick else ["iterations=16", "eval_steps=8"]
    with tempfile.TemporaryDirectory() as scratch:
        runs = arguments.runs or Path(scratch)

        def trained(loss: str, ratio: int, seed: int, *options: str) -> Training:
            given = [f"rollout.async_ratio={ratio}", f"seed={seed}", "save_steps=0", *settings, *options]
            return train("arithmetic", f"{loss}-{ratio}-{seed}", runs, given)

        grpo = {ratio: [trained("grpo", ratio, seed) for seed in seeds] for ratio in ratios}
        losses = {} if arguments.quick else {loss: trained(loss, 2, 0, *options) for loss, options in LOSSES.items()}
        table = Table("", "seed", "step, s", "old responses", *(f"accuracy {i}" for i in sorted(grpo[2][0].accuracies)))
        for ratio, trainings in grpo.items():
            for seed, training in zip(seeds, trainings, strict=True):
                row(table, f"grpo, α = {ratio}", seed, training, runs / f"grpo-{ratio}-{seed}")
        for loss, training in losses.items():
            row(table, f"{loss}, α = 2", 0, training, runs / f"{loss}-2-0")
    Console().print(table)
    conclude(grpo)


def row(table: Table, name: str, seed: int, training: Training, run: Path) -> None:
    accuracies = (f"{reached:.2f}" for _, reached in sorted(training.accuracies.items()))
    table.add_row(name, f"{seed}", f"{training.step_seconds:.1f}", f"{old_share(run):.0%}", *accuracies)


def old_share(run: Path) -> float:
    """Of the responses that were trained on, those that an earlier version began."""
    return statistics.fmean(
        1 - each.get("rollout/staleness/0", 0.0)
        for each in read_metrics(RunStore(str(run)).directory)
        if "rollout/staleness_mean" in each
    )


def conclude(grpo: dict[int, list[Training]]) -> None:
    """Print the last line."""
    ratio = max(grpo)
    if 0 not in grpo:
        print(f"asynchronous: a step at α = {ratio} takes {grpo[ratio][0].step_seconds:.1f} s; accuracy not measured")
        return
    seconds = {each: statistics.fmean(training.step_seconds for training in grpo[each]) for each in (0, ratio)}
    faster = f"a step at α = {ratio} is {seconds[0] / seconds[ratio]:.2f}× as fast"
    last = {each: [training.accuracies[max(training.accuracies)] for training in grpo[each]] for each in (0, ratio)}
    mean = {each: statistics.fmean(values) for each, values in last.items()}
    spread = max(max(values) - min(values) for values in last.values())
    print(
        f"asynchronous: {faster}; held-out accuracy {mean[ratio]:.3f} against {mean[0]:.3f} at α = 0 "
        f"(aim: no further apart than the seeds, {spread:.3f})"
    )


if __name__ == "__main__":
    main()
