"""What the trainer tests share: a configuration around a model, and batches of made-up rollouts."""

from __future__ import annotations

import multiprocessing
import random
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from safetensors.torch import load_file

from rlcore.batches import TrainBatch, validate
from rlcore.config import Config
from rlcore.trainer.learner import Learner
from rlcore.trainer.rank import TrainerRank

FLOATS, TOKENS = pl.List(pl.Float32), pl.List(pl.Int32)
SCHEMA: dict[str, Any] = {
    "sample_id": pl.String,
    "prompt_ids": TOKENS,
    "response_ids": TOKENS,
    "loss_mask": pl.List(pl.Boolean),
    "rollout_logprobs": FLOATS,
    "old_logprobs": FLOATS,
    "ref_logprobs": FLOATS,
    "values": FLOATS,
    "advantages": FLOATS,
    "returns": FLOATS,
    "raw_reward": pl.Float64,
    "overlong_penalty": pl.Float64,
    "length_penalty": pl.Float64,
    "repetition_penalty": pl.Float64,
    "shaped_reward": pl.Float64,
    "score": pl.Float64,
    "sample_weight": pl.Float64,
    "drop_reason": pl.String,
}
VOCABULARY = 49152


def trainer_config(model: Path, dtype: str = "float32", **sections: dict[str, Any]) -> Config:
    """One thread, so that float32 results repeat bit for bit; `sections` change single keys."""
    tree: dict[str, Any] = {
        "run": "trainer-test",
        "iterations": 1,
        "model": {"path": str(model), "dtype": dtype},
        "data": {
            "train": ["train.jsonl"],
            "held_out": ["held_out.jsonl"],
            "prompt_length": 32,
            "domain_interleave_probs": {"arithmetic": 1.0},
        },
        "rollout": {"rollout_batch_size": 4, "num_return_sequences_in_group": 2, "response_length": 16},
        "rewards": {"arithmetic": {"grader": "math"}},
        "trainer": {"learning_rate": 1e-3},
        "hardware": {"trainer_threads": 1, "engine_threads": 1},
    }
    for section, values in sections.items():
        tree[section] = tree.get(section, {}) | values
    return Config.model_validate(tree)


def train_batch(
    rows: int = 8,
    seed: int = 0,
    advantages: tuple[float, ...] = (1.0, -0.5),
    group_size: int = 2,
    response_lengths: Sequence[int] = (),
) -> pl.DataFrame:
    """Rows of random tokens, `group_size` to a prompt, whose advantages are drawn from the given ones.

    Response lengths are drawn too, up to 16, or the given ones in turn.
    """
    draw = random.Random(seed)

    def tokens(length: int) -> list[int]:
        return [draw.randrange(VOCABULARY) for _ in range(length)]

    made = []
    for row in range(rows):
        if row % group_size == 0:
            prompt = tokens(draw.randint(1, 24))
        response = tokens(response_lengths[row % len(response_lengths)] if response_lengths else draw.randint(1, 16))
        old = [-10.8 + draw.uniform(-0.1, 0.1) for _ in response]
        advantage = [draw.choice(advantages)] * len(response)
        made.append(
            {
                "sample_id": f"{seed}-{row}",
                "prompt_ids": prompt,
                "response_ids": response,
                "loss_mask": [True] * len(response),
                "rollout_logprobs": old,
                "old_logprobs": old,
                "advantages": advantage,
                "returns": advantage,
                "raw_reward": 1.0,
                "shaped_reward": 1.0,
                "score": advantage[0],
                "sample_weight": 1.0,
            }
        )
    return validate(pl.DataFrame(made, schema=SCHEMA), TrainBatch)


def dropped(batch: pl.DataFrame) -> pl.DataFrame:
    """The batch with no token that trains."""
    nothing = pl.col("loss_mask").list.eval(pl.element() & False)
    return batch.with_columns(nothing, drop_reason=pl.lit("no_variance"))


def on_policy(batch: pl.DataFrame, logprobs: pl.DataFrame) -> pl.DataFrame:
    """The batch as if the policy that gave `logprobs` had sampled it."""
    return batch.with_columns(old_logprobs=logprobs["logprobs"], rollout_logprobs=logprobs["logprobs"])


def weights(trainer: TrainerRank, directory: Path) -> dict[str, torch.Tensor]:
    """The trainer's weights by their Hugging Face names."""
    file = directory / "weights.safetensors"
    trainer.export_weights(str(file))
    return load_file(file)


@contextmanager
def trainers_in_this_process() -> Iterator[None]:
    """Leaves torch without process groups, and with the threads it had."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    if dist.is_initialized():
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


Call = tuple[str, tuple[Any, ...]]
"""A method of a rank and its arguments."""


Script = tuple[Callable[..., Learner], Config, list[Call]]
"""A kind of learner, its configuration, and what is called of it."""


def run_world(*scripts: Script) -> list[list[list[Any]]]:
    """By rank and script: the results of the calls. In as many fresh processes as the first learner has ranks.

    The scripts run one after the other in the same processes, so all are of one layout.
    """
    size = scripts[0][1].trainer.world_size
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    # The imports take longer than the work: a server makes them once for all worlds, and forks.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rlcore.trainer.critic", "rlcore.trainer.rank"])
    with ProcessPoolExecutor(size, mp_context=context) as processes:
        ranks = [processes.submit(_run_rank, rank, port, scripts) for rank in range(size)]
        return [rank.result() for rank in ranks]


def _run_rank(rank: int, port: int, scripts: tuple[Script, ...]) -> list[list[Any]]:
    results = []
    for kind, config, calls in scripts:
        learner = kind(config, rank, master_port=port)
        results.append([getattr(learner, method)(*arguments) for method, arguments in calls])
    return results
