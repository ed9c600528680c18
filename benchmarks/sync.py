"""The trainer's weights to the engines: the time of a transfer against that of copying the same bytes.

    python -m benchmarks.sync [--quick]

SmolLM2 in bfloat16, a trainer and the engines of this machine's configuration, each in a process of its own as in a
training. The copy is of all tensors into memory that was written before, with all cores. A transfer lasts from the
moment in which the engines stop until they go on with the new weights, packed for the kernels. The first of each, in
which memory is touched for the first time, is left out.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file

from benchmarks.on_ray import ray_process
from rlcore.cluster.engine import engines
from rlcore.cluster.policy import trainer_at
from rlcore.cluster.residents import release
from rlcore.cluster.transfer import transfer_weights
from rlcore.compose import compose
from rlcore.config import model_directory
from rlcore.store import RunStore
from rlcore.trainer.checkpoint import WEIGHTS

AIM = 2.0
MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one transfer to one engine")
    quick = parser.parse_args().quick
    rounds = 1 if quick else 10
    with tempfile.TemporaryDirectory() as scratch:
        several = compose("arithmetic", [f"runs_dir={scratch}"]).hardware.engines
        model = load_file(model_directory(compose("arithmetic", []).model) / WEIGHTS)
        size = sum(tensor.nbytes for tensor in model.values())
        measured = {"copy": copies(list(model.values()), 1 + rounds)}
        del model
        with ray_process(Path(scratch)) as process:
            for count in {1: None} if quick else dict.fromkeys((1, several)):
                seconds = process.submit(transfers, Path(scratch), count, 1 + rounds).result()
                measured[f"to {count} engine{'s'[: count - 1]}"] = seconds
    report(measured, size)


def copies(tensors: list[torch.Tensor], rounds: int) -> list[float]:
    """Seconds of each copy of all tensors."""
    targets = [torch.zeros_like(tensor) for tensor in tensors]
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        for target, tensor in zip(targets, tensors, strict=True):
            target.copy_(tensor)
        seconds.append(time.perf_counter() - started)
    return seconds[1:]


def transfers(scratch: Path, count: int, rounds: int) -> list[float]:
    """Seconds of each transfer to so many engines."""
    config = compose("arithmetic", [f"runs_dir={scratch}", f"hardware.engines={count}", f"run=engines-{count}"])
    store = RunStore(config.run_url)
    store.directory.mkdir()
    store.assign_run_id()
    serving, trainer = engines(config, store), trainer_at(config, store, 0)
    seconds = [transfer_weights(trainer, serving, version).seconds for version in range(1, 1 + rounds)]
    release(store.run_id)
    return seconds[1:]


def report(measured: dict[str, list[float]], size: int) -> None:
    """Print the table and the last line."""
    medians = {name: statistics.median(seconds) for name, seconds in measured.items()}
    copy, one, *_ = medians.values()
    table = Table("", "median s", "range", "GB/s", "times the copy", title=f"{size / MIB:.0f} MiB of weights")
    for name, seconds in measured.items():
        spread = f"{min(seconds):.3f} to {max(seconds):.3f}"
        row = f"{medians[name]:.3f}", spread, f"{size / medians[name] / 1e9:.1f}", f"{medians[name] / copy:.1f}"
        table.add_row(name, *row)
    Console().print(table)
    more = "".join(f"; to {name.removeprefix('to ')} {seconds / copy:.1f}" for name, seconds in [*medians.items()][2:])
    print(f"a transfer to one engine takes {one / copy:.1f} times a copy of the bytes (aim ≤ {AIM:g}){more}")


if __name__ == "__main__":
    main()
