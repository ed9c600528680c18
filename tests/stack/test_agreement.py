"""Engine and trainer agree, in bfloat16, on the log-probabilities of what the engine sampled."""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import polars as pl
import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file, save_file

from rlcore.compose import compose
from rlcore.config import Config
from rlcore.data.prompts import held_out_prompts
from rlcore.generation.requests import group_requests
from rlcore.generation.vllm import VLLMGenerator
from rlcore.trainer.rank import TrainerRank
from tests.stack.generation import give

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

PROMPTS = 16
BOUND = 0.05
"""Nats, of the mean |log μ − log π|: bfloat16 rounds differently in two implementations, and no more than that."""


def agreement_config(model: Path) -> Config:
    return compose(
        "arithmetic",
        [
            f"model.path='{model}'",
            "rollout.num_return_sequences_in_group=4",
            "rollout.response_length=24",
            "hardware.trainer_threads=1",
            "hardware.engine_threads=1",
        ],
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VLLMGenerator]:
    generator = VLLMGenerator(agreement_config(smollm2), str(tmp_path_factory.mktemp("logs") / "engine.log"))
    await generator.start()
    yield generator
    await generator.close()


@pytest.fixture(scope="module")
def trainer_process() -> Iterator[ProcessPoolExecutor]:
    """A process for trainers, because they change torch."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        yield process


@pytest.fixture(scope="module")
def other_model(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pretrained model with a little noise on its matrices."""
    directory = tmp_path_factory.mktemp("models") / "other"
    shutil.copytree(smollm2, directory)
    torch.manual_seed(0)
    weights = {
        name: tensor + 0.02 * tensor.std() * torch.randn_like(tensor) if tensor.ndim == 2 else tensor
        for name, tensor in load_file(smollm2 / "model.safetensors").items()
    }
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    return directory


async def sampled(engine: VLLMGenerator, config: Config) -> pl.DataFrame:
    """Four responses to each of 16 prompts from all over the held-out file, with the engine's log-probabilities."""
    prompts = held_out_prompts(config)
    prompts = prompts.gather_every(len(prompts) // PROMPTS).head(PROMPTS).with_columns(seed=pl.int_range(PROMPTS))
    requests = group_requests(prompts, config.rollout)
    generations = await engine.generate(requests)
    return pl.DataFrame(
        {
            "sample_id": [generation.request_id for generation in generations],
            "prompt_ids": [list(request.prompt_ids) for request in requests],
            "response_ids": [generation.response_ids for generation in generations],
            "rollout_logprobs": [generation.logprobs for generation in generations],
        }
    )


def trainer_logprobs(config: Config, rollouts: pl.DataFrame, weights: Path) -> pl.Series:
    """The trainer's log-probabilities of the responses; its weights go to a file. Runs in the trainers' process."""
    trainer = TrainerRank(config, trainable=False)
    trainer.export_weights(str(weights))
    return trainer.logprobs(rollouts)["logprobs"]


def mean_difference(rollouts: pl.DataFrame, logprobs: pl.Series) -> float:
    """Mean |log μ − log π| over all tokens of all responses, in nats."""
    assert logprobs.list.len().equals(rollouts["response_ids"].list.len())
    return float((rollouts["rollout_logprobs"].explode() - logprobs.explode()).to_torch().abs().mean())


async def test_engine_and_trainer_agree_before_and_after_an_update_and_other_weights_do_not(
    engine: VLLMGenerator, trainer_process: ProcessPoolExecutor, smollm2: Path, other_model: Path, tmp_path: Path
) -> None:
    config, other_config = agreement_config(smollm2), agreement_config(other_model)
    weights = tmp_path / "weights.safetensors"

    def difference(config: Config, rollouts: pl.DataFrame) -> float:
        logprobs = trainer_process.submit(trainer_logprobs, config, rollouts, weights).result()
        return mean_difference(rollouts, logprobs)

    rollouts = await sampled(engine, config)
    same = difference(config, rollouts)
    other = difference(other_config, rollouts)
    await give(engine, load_file(weights), 1)
    updated = difference(other_config, await sampled(engine, config))
    measured = f"mean |log μ − log π|: {same:.4f} nats; to other weights {other:.4f}; updated to these {updated:.4f}"
    print(measured)
    assert len(rollouts) == 64
    assert same < BOUND, measured
    assert other > 2 * BOUND, measured
    assert updated < BOUND, measured
