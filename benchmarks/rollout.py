"""The scheduler against vLLM's own LLM.generate: tokens a second on the same requests.

    python -m benchmarks.rollout [--quick]

SmolLM2 answers prompts of the arithmetic mix, 8 responses of at most 32 tokens each. Rounds of the same requests, with
the same seeds, go to LLM.generate in a process of its own, and then through a scheduler with its journal, its graders
and one engine of the same size, each in a process of its own as in a training. A last part does the same with the
engines of this machine's configuration. The first round of each, in which engines warm up, is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.on_ray import ray_process
from rlcore.cluster.engine import EngineGroup, engines, graders
from rlcore.cluster.residents import release
from rlcore.cluster.rollouts import rollouts
from rlcore.cluster.transfer import BUCKET_BYTES
from rlcore.compose import compose, dump
from rlcore.config import Config, model_directory
from rlcore.data.prompts import training_sampler
from rlcore.generation.requests import group_requests
from rlcore.store import RunStore
from rlcore.trainer.checkpoint import WEIGHTS
from rlcore.weights.shared_memory import SharedMemory, in_buckets

AIM = 0.95
REPOSITORY = Path(__file__).parents[1]


@dataclass(frozen=True)
class Round:
    """The requests of one batch, answered."""

    seconds: float
    tokens: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of 4 prompts")
    quick = parser.parse_args().quick
    rounds, prompts = (1, 4) if quick else (5, 32)
    measured: dict[str, list[Round]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        whole = settings(Path(scratch), prompts, rounds)
        one = compose("arithmetic", [*whole, "hardware.engines=1", "hardware.engine_threads=${cores:}", *ONE_ENGINE])
        measured["LLM.generate"] = by_llm(one, Path(scratch), 1 + rounds)
        with ray_process(Path(scratch)) as process:
            measured["scheduler, one engine"] = process.submit(by_scheduler, one, 1 + rounds).result()
            ours = compose("arithmetic", [*whole, "run=ours"])
            if ours.hardware.engines > 1 and not quick:
                several = process.submit(by_scheduler, ours, 1 + rounds).result()
                measured[f"scheduler, {ours.hardware.engines} engines"] = several
    report(measured)


ONE_ENGINE = ["hardware.max_num_seqs=128", "run=one"]


def settings(scratch: Path, prompts: int, rounds: int) -> list[str]:
    return [f"runs_dir={scratch}", f"rollout.rollout_batch_size={prompts}", f"iterations={1 + rounds}"]


def by_llm(config: Config, scratch: Path, rounds: int) -> list[Round]:
    """LLM.generate, in a process of its own."""
    sampler, size = training_sampler(config), config.rollout.rollout_batch_size
    batches = [sampler.draw(number * size, size) for number in range(rounds)]
    requests = [[asdict(request) for request in group_requests(batch, config.rollout)] for batch in batches]
    (scratch / "config.yaml").write_text(dump(config))
    (scratch / "requests.json").write_text(json.dumps(requests))
    command = [sys.executable, "benchmarks/processes/llm_generate.py", str(scratch / "config.yaml")]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": str(config.hardware.engine_threads)}
    quiet = {"OMP_WAIT_POLICY": "PASSIVE", "TORCHDYNAMO_DISABLE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        [*command, str(scratch / "requests.json")],
        env={**environment, **quiet, "HF_HUB_OFFLINE": "1"},
        cwd=REPOSITORY,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return [Round(**each) for each in json.loads(done.stdout.splitlines()[-1])]


def by_scheduler(config: Config, rounds: int) -> list[Round]:
    """A scheduler, engines and graders on Ray, from asking for a batch to having it."""
    store = RunStore(config.run_url)
    store.directory.mkdir()
    store.assign_run_id()
    sampler, size = training_sampler(config), config.rollout.rollout_batch_size
    serving, scheduler, grading = engines(config, store), rollouts(config, store), graders(config, store)
    measured, weights = [], load_file(model_directory(config.model) / WEIGHTS)
    for iteration in range(1, rounds + 1):
        prompts = sampler.draw((iteration - 1) * size, size)
        started = time.perf_counter()
        batch = scheduler.collect(iteration, prompts, serving, grading)
        measured.append(Round(time.perf_counter() - started, int(batch["response_ids"].list.len().sum())))
        # The next batch is for the next version of the policy: here the same weights.
        give(serving, weights, iteration)
    release(store.run_id)
    return measured[1:]


def give(serving: EngineGroup, weights: dict[str, Tensor], policy_version: int) -> None:
    """The engines serve these weights as those of that version."""
    memory = SharedMemory()
    serving.start_update()
    for tensors in in_buckets(weights.items(), BUCKET_BYTES):
        serving.loaded(serving.begin_load(memory.write(tensors)))
    serving.finish_update(policy_version)


def report(measured: dict[str, list[Round]]) -> None:
    """Print the table and the last line."""
    speeds = {name: statistics.median(r.tokens / r.seconds for r in rounds) for name, rounds in measured.items()}
    table = Table("", "tokens/s", "a round, s", "tokens of a round", title="medians of the rounds")
    for name, rounds in measured.items():
        seconds = statistics.median(each.seconds for each in rounds)
        tokens = statistics.median(each.tokens for each in rounds)
        table.add_row(name, f"{speeds[name]:.0f}", f"{seconds:.2f}", f"{tokens:.0f}")
    Console().print(table)
    base, one, *several = speeds.values()
    more = f"; with all engines {several[0] / base:.2f}" if several else ""
    print(f"the scheduler has {one / base:.3f} of the tokens/s of LLM.generate (aim ≥ {AIM}){more}")


if __name__ == "__main__":
    main()
