"""TRL's GRPOTrainer and `rlvr train` on the same machine: seconds a step, and seconds to a held-out accuracy.

    python -m benchmarks.against_trl [--quick]

Both train SmolLM2 on the arithmetic mix: the same prompts in the same order, 16 a step with 8 responses of at most 32
tokens each, one optimizer step on all of them, the clipped loss averaged over the tokens, no KL, learning rate, clip
and grader alike. Both answer the held-out prompts greedily every few steps. The seconds count training only; on our
side that includes Prefect, Ray, every batch on disk, and loading the trainer's model in the first step. Two things
differ, as each has them: rlvr trains in bfloat16 with float32 main weights and leaves groups without variance out of
the update, TRL trains float32 weights under bfloat16 autocast. TRL generates with transformers' generate, since its
vLLM engine needs a GPU.

TRL is installed in an environment of its own, in the cache directory, beside the torch and transformers of this one's
versions: a minute or two, once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import venv
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.trainings import Training, train
from rlcore.cluster.residents import STEADY_MEMORY, WAKEFUL_THREADS
from rlcore.compose import REPOSITORY, compose
from rlcore.config import Config
from rlcore.data.datasets import load_prompts
from rlcore.data.prompts import training_sampler
from rlcore.pretrained import cache_directory

TRL_VERSION = "1.16.0"
SHARED_PACKAGES = ("torch", "transformers", "math-verify", "sympy", "antlr4-python3-runtime")
"""Installed beside TRL in the versions that this environment has."""
PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"

TARGET_ACCURACY = 0.70
AIM = 5.0
ROWS_AT_ONCE = 16
"""TRL's responses in one forward and backward pass; 32 take as long on two cores, 64 longer."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two steps of two prompts each, side by side, no accuracy")
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--eval-steps", type=int, default=3)
    arguments = parser.parse_args()
    settings = [f"iterations={arguments.iterations}", f"eval_steps={arguments.eval_steps}"]
    if arguments.quick:
        settings = ["iterations=2", "eval_steps=0", "rollout.rollout_batch_size=2", "hardware.engines=1"]
    python = trl_environment()
    # One after the other, so that each has the machine to itself.
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(2 if arguments.quick else 1) as executor:
        ours = executor.submit(train, "arithmetic", "rlvr", Path(scratch), ["save_steps=0", *settings])
        theirs = executor.submit(train_with_trl, python, compose("arithmetic", settings), Path(scratch))
    report({f"TRL {TRL_VERSION}": theirs.result(), "rlvr": ours.result()})


def trl_environment() -> Path:
    """The Python of TRL's environment; made if it is not there."""
    wanted = [f"trl=={TRL_VERSION}", *(f"{name}=={version(name)}" for name in SHARED_PACKAGES)]
    directory = cache_directory() / f"trl-{TRL_VERSION}"
    python, stamp = directory / "bin" / "python", directory / "installed"
    if stamp.is_file() and stamp.read_text() == "\n".join(wanted):
        return python
    print(f"Installing {', '.join(wanted)} into {directory}", flush=True)
    venv.create(directory, with_pip=True, clear=True)
    pip = [str(python), "-m", "pip", "install", "-qq", "--no-compile", "--no-input"]
    if subprocess.run([*pip, *wanted], check=False).returncode != 0:
        subprocess.run([*pip, "--extra-index-url", PYTORCH_CPU_INDEX, *wanted], check=True)
    stamp.write_text("\n".join(wanted))
    return python


def train_with_trl(python: Path, config: Config, scratch: Path) -> Training:
    """TRL's GRPOTrainer under the same settings, until it reaches the accuracy or the last iteration."""
    rollout = config.rollout
    prompts = training_sampler(config).draw(0, config.iterations * rollout.rollout_batch_size)
    columns = ("messages", "ground_truth")
    settings = {
        "model": config.model.path,
        "output": str(scratch / "trl"),
        "seed": config.seed,
        "iterations": config.iterations,
        "eval_steps": config.eval_steps,
        "target_accuracy": TARGET_ACCURACY,
        "rollout_batch_size": rollout.rollout_batch_size,
        "group": rollout.num_return_sequences_in_group,
        "response_length": rollout.response_length,
        "temperature": rollout.temperature,
        "learning_rate": config.trainer.learning_rate,
        "rows_at_once": ROWS_AT_ONCE,
        "threads": config.hardware.trainer_threads,
        "train": prompts.select(columns).to_dicts(),
        "held_out": load_prompts(config.data.held_out, set(config.data.domain_interleave_probs))
        .select(columns)
        .to_dicts(),
    }
    (scratch / "settings.json").write_text(json.dumps(settings))
    threads = {"OMP_NUM_THREADS": str(config.hardware.trainer_threads)}
    environment = {**os.environ, **WAKEFUL_THREADS, **STEADY_MEMORY, **threads, "PYTHONPATH": str(REPOSITORY)}
    script = REPOSITORY / "benchmarks" / "processes" / "trl_grpo.py"
    progress = scratch / "progress.jsonl"
    command = [python, script, scratch / "settings.json", progress]
    subprocess.run(command, env={**environment, "TQDM_DISABLE": "1"}, check=True)
    lines = [json.loads(line) for line in progress.read_text().splitlines()]
    accuracies = {line["step"]: line["accuracy"] for line in lines if "accuracy" in line}
    return Training([line["seconds"] for line in lines if "seconds" in line], accuracies)


def report(trainings: dict[str, Training]) -> None:
    """Print the table and the last line."""
    steps = sorted({step for training in trainings.values() for step in training.accuracies})
    columns = [f"accuracy after {step}" for step in steps]
    table = Table("", "step, s", "steps", f"seconds to {TARGET_ACCURACY:.2f}", *columns)
    for name, training in trainings.items():
        to_target = training.seconds_to(TARGET_ACCURACY)
        accuracies = (f"{training.accuracies[step]:.2f}" if step in training.accuracies else "" for step in steps)
        reached = "not reached" if to_target is None else f"{to_target:.0f}"
        table.add_row(name, f"{training.step_seconds:.1f}", f"{len(training.seconds)}", reached, *accuracies)
    Console().print(table)
    theirs, ours = trainings.values()
    slow, fast = (training.seconds_to(TARGET_ACCURACY) for training in (theirs, ours))
    sooner = f"{slow / fast:.1f}× as soon there" if slow and fast else "not reached by both"
    print(
        f"against TRL: a step {theirs.step_seconds / ours.step_seconds:.1f}× as fast; "
        f"held-out accuracy {TARGET_ACCURACY:.2f}: {sooner} (aim ≥ {AIM:.0f}×)"
    )


if __name__ == "__main__":
    main()
