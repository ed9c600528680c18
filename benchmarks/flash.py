"""ROLL Flash's tables (arXiv 2510.11345) in virtual time: the real scheduler, on simulated engines.

    python -m benchmarks.flash [--quick]

Engines take time and compute nothing; what the scheduler is compared with is simulated in the same time. The paper
gives batch sizes, the published figures, that rollouts are 70 % of the time, and that the longest response is 20 times
the median. The rest is assumed, and printed; seconds are therefore comparable within a table, and with the paper as
ratios only. Every time is a mean over steps. Proposition 2 bounds it from above, for K GPUs, N responses that take a
GPU μ_g seconds (what a response takes, by the slots), at most L_g, and Eμ_t of training each:
synchronous (N/K)(μ_g + Eμ_t) + L_g, asynchronous (N/K)(μ_g + Eμ_t) + L_g/(α + 1).
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.simulation.rollouts import Hardware, Lengths, Rollouts, Workload, steps_of, steps_with_scheduler
from benchmarks.simulation.virtual_time import run_in_virtual_time

AIM_ASYNC, AIM_SCALING = 2.24, 7.6
MEDIAN, LONGEST = 1600, 32768
"""Tokens."""
TAIL = math.log(20) / 3.49
"""σ of a lognormal length: of 4,096 draws the longest is then 20 times the median."""
GPU = Hardware(slots=32, token_seconds=5e-3, token_seconds_each=2e-4, longest=LONGEST)
ROLLOUT_SHARE = 0.7
ASSUMED = f"""Assumed: lengths are lognormal, {MEDIAN:,} tokens in the middle, σ = {TAIL:.2f} where no other is named,
drawn anew for each attempt and cut at {LONGEST:,}. A GPU decodes {GPU.slots} responses at once; a step takes
{1e3 * GPU.token_seconds:g} ms to read 16 GB of weights and {1e3 * GPU.token_seconds_each:g} ms for the cache of each
response (an 8B model in bfloat16 on an H800). Grading takes 1 s, an update of the weights nothing."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps, one distribution of lengths")
    quick = parser.parse_args().quick
    console = Console(width=110)
    console.print(ASSUMED)
    queue_scheduling(console, 5 if quick else 60)
    prompt_replication(console, 1 if quick else 6)
    best = async_ratio(console, quick)
    scaling = workers(console, 3 if quick else 8, (0.0, 8.0) if quick else (0.0, 2.0, 4.0, 8.0))
    console.print(
        f"asynchronous speed-up {best:.2f} times (aim {AIM_ASYNC}), "
        f"8 times the workers {scaling:.2f} times as fast (aim {AIM_SCALING})"
    )


def lognormal(sigma: float) -> Lengths:
    return lambda generator: generator.lognormvariate(math.log(MEDIAN), sigma)


def uniform(generator: random.Random) -> float:
    return generator.uniform(0, 2 * MEDIAN)


def table_of(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    return table


def queue_scheduling(console: Console, steps: int) -> None:
    """Until 8 prompts with 8 responses each have passed the filter."""
    table = table_of(
        f"Queue scheduling: 8 prompts × 8 responses on 8 GPUs, mean of {steps} steps, s",
        *("", "published", "×", "¼ rejected", "×", "½ rejected", "×"),
    )
    published = {"batch rollouts": 125, "queue, +0 prompts": 58, "queue, +16 prompts": 37}
    measured: dict[str, list[float]] = {name: [] for name in published}
    for rejected in (0.25, 0.5):
        workload = Workload(8, 8, lognormal(TAIL), rejected, grading_seconds=1.0)
        batches = Rollouts(workload, GPU, 8)
        measured["batch rollouts"].append(run_in_virtual_time(steps_of(batches.batch_rollouts, steps)))
        for extra in (0, 16):
            rollouts = Rollouts(workload, GPU, 8)
            seconds = run_in_virtual_time(steps_with_scheduler(rollouts, steps, extra=extra, reserve=1000))
            measured[f"queue, +{extra} prompts"].append(seconds)
    batch = measured["batch rollouts"]
    for name, figure in published.items():
        ours = [cell for value, of in zip(measured[name], batch, strict=True) for cell in _times(value, of)]
        table.add_row(name, f"{figure}", f"{125 / figure:.2f}", *ours)
    console.print(table)
    if min(of / value for value, of in zip(measured["queue, +0 prompts"], batch, strict=True)) < 125 / 58:
        console.print(
            "Lower at +0: all 64 responses fit into the slots, so that a queue keeps no engine busier. It gains by "
            "starting a prompt the moment another is rejected, but starts one, where a further batch starts 8. The "
            "share that is rejected is ours; the paper does not give it."
        )


def prompt_replication(console: Console, steps: int) -> None:
    """A prompt's candidates as requests of their own, against one request to one engine."""
    table = table_of(
        f"Prompt replication on 8 GPUs, mean of {steps} steps, s",
        *("prompts × candidates", "published ×", "bound to an engine", "replicated", "(N/K)μ_g + L_g", "×"),
    )
    lower, longest = [], 0.0
    for (prompts, responses), published in {(32, 16): 1.30, (64, 16): 1.84, (16, 64): 1.95}.items():
        workload = Workload(prompts, responses, lognormal(TAIL))
        bound = run_in_virtual_time(steps_of(Rollouts(workload, GPU, 8).bound_rollouts, steps))
        rollouts = Rollouts(workload, GPU, 8)
        ours = run_in_virtual_time(steps_with_scheduler(rollouts, steps))
        limit = workload.size / 8 * rollouts.seconds.mean / GPU.slots + rollouts.seconds.most
        longest = rollouts.seconds.most
        row = (f"{prompts} × {responses}", f"{published:.2f}", f"{bound:.0f}", f"{ours:.0f}", f"{limit:.0f}")
        table.add_row(*row, f"{bound / ours:.2f}")
        if bound / ours < published:
            lower.append(f"{prompts} × {responses}")
    console.print(table)
    if lower:
        console.print(
            f"Lower at {', '.join(lower)}: replicated, a batch takes as long as its longest response at best (at "
            f"16 × 64 up to {longest:.0f} s), and bound to so few engines it does not take much longer. The paper "
            "names neither GPUs nor slots."
        )


@dataclass(frozen=True)
class Steps:
    """Of a training, synchronous or not."""

    seconds: float
    limit: float
    """Proposition 2's."""


def synchronous(workload: Workload, gpus: int, train_seconds: float, steps: int) -> Steps:
    """The scheduler at α = 0, rollouts and training on all GPUs in turn."""
    rollouts = Rollouts(workload, GPU, gpus)
    seconds = run_in_virtual_time(steps_with_scheduler(rollouts, steps, train_seconds=train_seconds))
    return Steps(seconds, _limit(rollouts, gpus, train_seconds, 0.0))


def asynchronous(
    workload: Workload, gpus: int, engines: int, train_seconds: float, async_ratio: float, steps: int
) -> Steps:
    """`train_seconds` on all GPUs; here the other GPUs train."""
    rollouts = Rollouts(workload, GPU, engines)
    seconds = run_in_virtual_time(
        steps_with_scheduler(
            rollouts,
            steps,
            train_seconds=train_seconds * gpus / (gpus - engines),
            async_ratio=async_ratio,
            warm_up=int(async_ratio) + 2,
        )
    )
    return Steps(seconds, _limit(rollouts, gpus, train_seconds, async_ratio))


def _limit(rollouts: Rollouts, gpus: int, train_seconds: float, async_ratio: float) -> float:
    generation = rollouts.workload.size / gpus * rollouts.seconds.mean / GPU.slots
    return generation + train_seconds + rollouts.seconds.most / (async_ratio + 1)


def async_ratio(console: Console, quick: bool) -> float:
    """The largest speed-up over batch rollouts."""
    gpus, steps = 16, 3 if quick else 8
    distributions = {f"long tail, σ = {TAIL:.2f}": lognormal(TAIL)}
    if not quick:
        distributions |= {"longer tail, σ = 1.25": lognormal(1.25), "short tail, σ = 0.4": lognormal(0.4)}
        distributions |= {"no tail, uniform": uniform}
    ratios = (1.0, 4.0) if quick else (0.5, 1.0, 2.0, 4.0, 8.0)
    table = table_of(
        f"Asynchronous ratio: 32 prompts × 16 responses on {gpus} GPUs, mean of {steps} steps; published: up to 2.24 ×",
        *("lengths", "α", "engines", "s", "Proposition 2", "× batch rollouts", "× α = 0"),
    )
    best: dict[str, float] = {}
    over = []
    for name, lengths in distributions.items():
        workload = Workload(32, 16, lengths)
        naive = run_in_virtual_time(steps_of(Rollouts(workload, GPU, gpus).batch_rollouts, steps))
        train_seconds = naive * (1 - ROLLOUT_SHARE) / ROLLOUT_SHARE
        naive += train_seconds
        table.add_row(name, "batch", f"{gpus}", f"{naive:.0f}", "", "1.00", "")
        sync = synchronous(workload, gpus, train_seconds, steps)
        table.add_row("", "0", f"{gpus}", f"{sync.seconds:.0f}", f"{sync.limit:.0f}", *_ratios(sync, naive, sync))
        splits = {
            engines: asynchronous(workload, gpus, engines, train_seconds, 2.0, 3).seconds for engines in (5, 6, 7, 8, 9)
        }
        engines = min(splits, key=splits.__getitem__)
        for ratio in ratios:
            found = asynchronous(workload, gpus, engines, train_seconds, ratio, steps)
            cells = (f"{ratio:g}", f"{engines}", f"{found.seconds:.0f}", f"{found.limit:.0f}")
            table.add_row("", *cells, *_ratios(found, naive, sync))
            best[name] = max(best.get(name, 0.0), naive / found.seconds)
            if found.seconds > found.limit:
                over.append(f"{name} at α = {ratio:g}")
        table.add_section()
    console.print(table)
    console.print(
        f"Training is {1 - ROLLOUT_SHARE:.0%} of a step with batch rollouts; the engines that were fastest at α = 2 "
        "are kept for every α, and the other GPUs train."
    )
    if over:
        console.print(
            f"Over Proposition 2's bound: {'; '.join(over)}. It holds for the best split; with this one engines run "
            "out of prompts that may run ahead while the others train."
        )
    return max(best.values())


def workers(console: Console, steps: int, ratios: Sequence[float]) -> float:
    """How much faster 8 workers are than one, at the best α."""
    counts, workload = (1, 2, 4, 8), Workload(16, 16, lognormal(TAIL))
    table = table_of(
        f"Scaling: 16 prompts × 16 responses, mean of {steps} steps, s (Proposition 2); "
        "published: 7.6 × with 8 × the GPUs",
        *("workers", *map(str, counts), "×"),
    )
    one = run_in_virtual_time(steps_of(Rollouts(workload, GPU, 2).batch_rollouts, steps))
    work = 2 * one * (1 - ROLLOUT_SHARE) / ROLLOUT_SHARE
    speed_ups = []
    for ratio in ratios:
        found = [
            asynchronous(workload, 2 * count, count, work / (2 * count), ratio, steps)
            if ratio
            else synchronous(workload, 2 * count, work / (2 * count), steps)
            for count in counts
        ]
        speed_ups.append(found[0].seconds / found[-1].seconds)
        cells = (f"{each.seconds:.0f} ({each.limit:.0f})" for each in found)
        table.add_row(f"α = {ratio:g}", *cells, f"{speed_ups[-1]:.2f}")
    console.print(table)
    console.print(
        "A worker is two GPUs: an engine and a trainer; at α = 0 both do both. The shorter the step, the larger α must "
        "be for the longest response to end within α + 1 steps."
    )
    return max(speed_ups)


def _times(value: float, of: float) -> tuple[str, str]:
    return f"{value:.0f}", f"{of / value:.2f}"


def _ratios(found: Steps, naive: float, sync: Steps) -> tuple[str, str]:
    return f"{naive / found.seconds:.2f}", f"{sync.seconds / found.seconds:.2f}"


if __name__ == "__main__":
    main()
