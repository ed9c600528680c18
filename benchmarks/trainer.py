"""The trainer's step four ways on the same batch: tokens a second, memory, and the share of what the machine can do.

    python benchmarks/trainer.py [--quick]

Hugging Face padded, ours padded, ours packed (trainer.share_prompts=false), and ours with shared prompts train
SmolLM2 on the same rows: prompts of the arithmetic mix, each with 8 responses of 10 to 32 random tokens. A step is
forward and backward passes of the clipped policy loss, clipping, and AdamW on float32 main weights; its seconds are
the median over several after one that does not count. Each variant has a process of its own, with the environment of
the trainer's actors, and the same token budget of a micro-batch, the preset's; a larger one makes Hugging Face slower,
since it pads more. Tokens a second count the prompt and the response of every row, however they were computed.
The share of the GEMM peak is the operations of the positions that a variant did compute, over the best rate of a
bfloat16 matrix product measured in the same run (benchmarks/processes/ says how both are counted).

On a machine with CUDA the model is Qwen-like, 0.6B random weights, and the batch is 16k random tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from rich.console import Console
from rich.table import Table

from rlcore.batches import TrainBatch, validate
from rlcore.cluster.residents import STEADY_MEMORY, WAKEFUL_THREADS
from rlcore.compose import compose, dump
from rlcore.config import Config
from rlcore.data.prompts import training_sampler

PROCESSES = Path(__file__).resolve().parent / "processes"
VARIANTS = {
    "hugging-face": "Hugging Face",
    "padded": "padded",
    "packed": "packed",
    "shared": "shared prompts",
}
PACKED_AIM, SHARED_AIM, PEAK_AIM = 1.5, 2.0, 0.6
NORM_TOLERANCE = 0.05
"""Largest relative difference of a gradient's norm from Hugging Face's: bfloat16 does not add up alike."""
GB, TERA = 1e9, 1e12


@dataclass(frozen=True, slots=True)
class Case:
    """What is trained on: `prompts` prompts with `group` responses each of `shortest` to `longest` tokens."""

    prompts: int
    group: int
    shortest: int
    longest: int

    def scaled(self, prompts: int = 1, length: int = 1) -> Case:
        return Case(prompts * self.prompts, self.group, length * self.shortest, length * self.longest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one prompt with four responses, one step, little growth")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        config, base = on_gpu(scratch) if torch.cuda.is_available() else (compose("arithmetic"), Case(8, 8, 10, 32))
        if quick:
            base = Case(1, 4, base.shortest, base.longest)
        (scratch / "config.yaml").write_text(dump(config))
        rates = gemm_rates(config, scratch)
        factors = (2,) if quick else (2, 4)
        grown = [base.scaled(prompts=factor) for factor in factors]
        longer = [base.scaled(length=factor) for factor in factors]
        steps = 1 if quick else 3
        results = {}
        for variant in VARIANTS:
            cases = [base, *grown, *longer] if variant == "shared" else [base]
            results[variant] = run(variant, config, cases, steps, scratch)
    bases = {variant: measured[0] for variant, measured in results.items()}
    print_variants(bases, rates, base)
    names = [f"{scale} ×{factor}" for scale in ("prompts", "response length") for factor in factors]
    print_growth(dict(zip(["as above", *names], results["shared"], strict=True)))
    print_figures(bases, rates["bfloat16"])


def on_gpu(scratch: Path) -> tuple[Config, Case]:
    """A Qwen-like model of 0.6B random weights in `scratch`, and a case of about 16k tokens for it."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape = Qwen3Config(
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151936,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(shape).to(torch.bfloat16).save_pretrained(scratch / "model")
    settings = [f"model.path={scratch / 'model'}", "hardware=gpu", "trainer.max_tokens_per_micro_batch=16384"]
    return compose("arithmetic", [*settings, "rollout.response_length=1024"]), Case(8, 8, 64, 192)


def gemm_rates(config: Config, scratch: Path) -> dict[str, float]:
    """FLOP/s by data type."""
    shape = model_shape(config)
    sizes = (shape["hidden_size"], shape["intermediate_size"], config.trainer.max_tokens_per_micro_batch)
    result = scratch / "gemm.json"
    start(config, "gemm.py", result, *sizes)
    return json.loads(result.read_text())


def run(variant: str, config: Config, cases: list[Case], steps: int, scratch: Path) -> list[dict[str, Any]]:
    """What `processes/trainer_step.py` measured of each case."""
    files = []
    for number, case in enumerate(cases):
        files.append(scratch / f"{variant}-{number}.parquet")
        make_batch(config, case).write_parquet(files[-1])
    result = scratch / f"{variant}.json"
    start(config, "trainer_step.py", variant, steps, result, scratch / "config.yaml", *files)
    return json.loads(result.read_text())


def start(config: Config, script: str, *arguments: object) -> None:
    """Run a script of processes/ to its end in the environment of a trainer's actor."""
    threads = {"OMP_NUM_THREADS": str(config.hardware.trainer_threads)}
    environment = {**os.environ, **WAKEFUL_THREADS, **STEADY_MEMORY, **threads, "TQDM_DISABLE": "1"}
    # Megatron warns of every CUDA library that is missing.
    command = [sys.executable, "-W", "ignore", str(PROCESSES / script), *map(str, arguments)]
    subprocess.run(command, env=environment, check=True)


def model_shape(config: Config) -> dict[str, Any]:
    return json.loads((Path(config.model.path) / "config.json").read_text())


def make_batch(config: Config, case: Case) -> pl.DataFrame:
    """A TrainBatch, the same for the same case. Its π_old is 0 everywhere: each variant puts its own there."""
    random = np.random.default_rng(0)
    vocabulary = model_shape(config)["vocab_size"]
    if torch.cuda.is_available():
        prompts = [random.integers(vocabulary, size=size).tolist() for size in random.integers(96, 161, case.prompts)]
    else:
        prompts = training_sampler(config).draw(0, case.prompts)["prompt_ids"].to_list()
    lengths = random.integers(case.shortest, case.longest + 1, (case.prompts, case.group))
    scores = random.normal(size=(case.prompts, case.group))
    scores = (scores - scores.mean(1, keepdims=True)) / scores.std(1, keepdims=True)
    rows = [
        {
            "sample_id": f"{number}#{index}",
            "prompt_ids": prompt,
            "response_ids": random.integers(vocabulary, size=lengths[number, index]).tolist(),
            "score": scores[number, index],
        }
        for number, prompt in enumerate(prompts)
        for index in range(case.group)
    ]
    tokens = pl.List(pl.Int32)
    schema: dict[str, pl.DataType | type[pl.DataType]] = {
        "sample_id": pl.String,
        "prompt_ids": tokens,
        "response_ids": tokens,
        "score": pl.Float64,
    }
    length = pl.col("response_ids").list.len()
    zeros = pl.lit(0.0, pl.Float32).repeat_by(length)
    score = pl.col("score").cast(pl.Float32).repeat_by(length)
    absent, unknown = pl.lit(None, pl.List(pl.Float32)), pl.lit(None, pl.Float64)
    batch = pl.DataFrame(rows, schema=schema).with_columns(
        loss_mask=pl.lit(True).repeat_by(length),
        rollout_logprobs=zeros,
        old_logprobs=zeros,
        ref_logprobs=absent,
        values=absent,
        advantages=score,
        returns=score,
        raw_reward=unknown,
        overlong_penalty=unknown,
        length_penalty=unknown,
        repetition_penalty=unknown,
        shaped_reward=unknown,
        sample_weight=pl.lit(1.0, pl.Float64),
        drop_reason=pl.lit(None, pl.String),
    )
    return validate(batch.select(TrainBatch.to_schema().columns.keys()), TrainBatch)


def step_seconds(measured: dict[str, Any]) -> float:
    return statistics.median(measured["seconds"])


def print_variants(bases: dict[str, dict[str, Any]], rates: dict[str, float], base: Case) -> None:
    """The table of the four variants.

    Raises:
        SystemExit: their gradients are not the same.
    """
    columns = ("tokens/s", "step, s", "peak, GB", "of GEMM", "positions", "gradient")
    peaks = ", ".join(f"{name} {rate / TERA:.2f}" for name, rate in rates.items())
    table = Table("", *columns, title=f"{base.prompts} prompts × {base.group} responses. GEMM peak in TFLOP/s: {peaks}")
    for variant, measured in bases.items():
        seconds = step_seconds(measured)
        table.add_row(
            VARIANTS[variant],
            f"{measured['tokens'] / seconds:.0f}",
            f"{seconds:.2f}",
            f"{measured['peak_bytes'] / GB:.2f}",
            f"{measured['flops'] / seconds / rates['bfloat16']:.2f}",
            f"{measured['positions']}",
            f"{measured['grad_norm']:.2f}",
        )
    Console().print(table)
    expected = bases["hugging-face"]["grad_norm"]
    for variant, measured in bases.items():
        if abs(measured["grad_norm"] / expected - 1) > NORM_TOLERANCE:
            sys.exit(f"{VARIANTS[variant]} has another gradient than {VARIANTS['hugging-face']}: see the norms above")


def print_growth(measured: dict[str, dict[str, Any]]) -> None:
    """The table of the batches with shared prompts."""
    table = Table("shared", "tokens", "positions", "step, s", "tokens/s", "positions/s")
    for name, one in measured.items():
        seconds = step_seconds(one)
        rates = (f"{one[count] / seconds:.0f}" for count in ("tokens", "positions"))
        table.add_row(name, f"{one['tokens']}", f"{one['positions']}", f"{seconds:.2f}", *rates)
    Console().print(table)


def print_figures(bases: dict[str, dict[str, Any]], peak: float) -> None:
    """The last line."""
    slow = step_seconds(bases["hugging-face"])
    packed, shared = (slow / step_seconds(bases[variant]) for variant in ("packed", "shared"))
    share = bases["shared"]["flops"] / step_seconds(bases["shared"]) / peak
    print(
        f"trainer: packed {packed:.2f}× Hugging Face's step (aim ≥ {PACKED_AIM}×), with shared prompts {shared:.2f}× "
        f"(aim ≥ {SHARED_AIM:.0f}×), at {share:.2f} of the GEMM peak (aim ≥ {PEAK_AIM})"
    )


if __name__ == "__main__":
    main()
