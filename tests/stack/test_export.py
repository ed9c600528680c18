"""An exported model in plain transformers, in vLLM, and as the start of another training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlcore.compose import dump
from rlcore.export import export_model
from rlcore.generation.vllm import VLLMGenerator
from rlcore.store import RunStore
from rlcore.trainer.checkpoint import HUGGINGFACE, publish
from rlcore.trainer.rank import TrainerRank
from tests.stack.generation import engine_config, requests
from tests.stack.training import train_batch, trainer_config, trainers_in_this_process

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module", autouse=True)
def _world() -> Iterator[None]:
    with trainers_in_this_process():
        yield


@pytest.fixture(scope="module")
def trainer(tiny_llama: Path) -> TrainerRank:
    """After an update that changes the weights."""
    trainer = TrainerRank(trainer_config(tiny_llama))
    trainer.update(1, "digest", train_batch())
    return trainer


@pytest.fixture(scope="module")
def exported(trainer: TrainerRank, tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = RunStore(str(tmp_path_factory.mktemp("run")))
    store.write_bytes("config.yaml", dump(trainer.config).encode())
    staging = store.directory / "checkpoints" / ".saving"
    trainer.export_huggingface(str(staging / HUGGINGFACE))
    publish(staging, store.directory / "checkpoints" / "000001")
    directory = tmp_path_factory.mktemp("exports") / "model"
    export_model(store, 1, directory)
    return directory


def test_plain_transformers_loads_model_and_tokenizer_with_chat_template(trainer: TrainerRank, exported: Path) -> None:
    batch = train_batch(rows=1)
    [prompt], [response] = batch["prompt_ids"].to_list(), batch["response_ids"].to_list()
    model = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
    expected = logits.log_softmax(-1).gather(-1, torch.tensor(response)[:, None])[:, 0]
    assert (trainer.logprobs(batch)["logprobs"].explode().to_torch() - expected).abs().max() < 1e-4
    chat = AutoTokenizer.from_pretrained(exported).apply_chat_template(
        [{"role": "user", "content": "Say 1."}], tokenize=False, add_generation_prompt=True
    )
    assert "Say 1." in chat and chat.endswith("<|im_start|>assistant\n")


def test_another_training_starts_from_it(trainer: TrainerRank, exported: Path) -> None:
    batch = train_batch()
    again = TrainerRank(trainer_config(exported))
    assert again.policy_version() == 0
    assert again.logprobs(batch).equals(trainer.logprobs(batch))


async def test_vllm_loads_it(trainer: TrainerRank, exported: Path, tmp_path: Path) -> None:
    config = engine_config(exported, dtype="float32", prompt_length=32, response_length=16)
    engine = VLLMGenerator(config, str(tmp_path / "engine.log"))
    await engine.start()
    try:
        asked = requests(4)
        generations = await engine.generate(asked)
    finally:
        await engine.close()
    batch = pl.DataFrame(
        {
            "sample_id": [request.request_id for request in asked],
            "prompt_ids": [list(request.prompt_ids) for request in asked],
            "response_ids": [generation.response_ids for generation in generations],
        },
        schema_overrides={"prompt_ids": pl.List(pl.Int32), "response_ids": pl.List(pl.Int32)},
    )
    sampled = torch.tensor([logprob for generation in generations for logprob in generation.logprobs])
    assert (trainer.logprobs(batch)["logprobs"].explode().to_torch() - sampled).abs().max() < 1e-3
