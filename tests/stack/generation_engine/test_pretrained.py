"""The vLLM engine on the pretrained model in bfloat16: packed weights after an update, and the end of a turn."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from rlcore.generation.interface import GenerationRequest
from rlcore.generation.vllm import VLLMGenerator
from tests.stack.generation import engine_config, give, requests

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VLLMGenerator]:
    generator = await _started(smollm2, tmp_path_factory.mktemp("logs") / "engine.log")
    yield generator
    await generator.close()


async def _started(model: Path, log: Path) -> VLLMGenerator:
    config = engine_config(model, dtype="bfloat16", prompt_length=64, response_length=64)
    generator = VLLMGenerator(config, str(log))
    await generator.start()
    return generator


async def test_a_response_ends_with_the_end_of_turn_token(engine: VLLMGenerator, smollm2: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    question = [{"role": "user", "content": "What is 2 + 2? Answer with the number only."}]
    prompt_ids = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_dict=True)["input_ids"]
    stopped, cut = await engine.generate(
        [GenerationRequest("stopped", prompt_ids, 64, 0.0, 0), GenerationRequest("cut", prompt_ids, 1, 0.0, 0)]
    )
    assert stopped.finish_reason == "stop"
    assert stopped.response_ids[-1] == tokenizer.eos_token_id
    assert tokenizer.eos_token_id not in stopped.response_ids[:-1]
    assert len(stopped.logprobs) == len(stopped.policy_versions) == len(stopped.response_ids)
    assert "4" in stopped.text
    assert tokenizer.eos_token not in stopped.text
    assert (cut.finish_reason, cut.response_ids) == ("length", stopped.response_ids[:1])
    assert stopped.seconds > 0


async def test_an_updated_engine_equals_a_fresh_one_bit_for_bit(
    engine: VLLMGenerator, smollm2: Path, tmp_path: Path
) -> None:
    """bfloat16 layers compute with packed copies of their weights, the tied output head with one of its own."""
    trained = tmp_path / "trained"
    shutil.copytree(smollm2, trained)
    torch.manual_seed(0)
    weights = {
        name: tensor + (0.1 * tensor.std() * torch.randn_like(tensor)) if tensor.ndim == 2 else tensor
        for name, tensor in load_file(smollm2 / "model.safetensors").items()
    }
    save_file(weights, trained / "model.safetensors", {"format": "pt"})
    before = await _one_by_one(engine)
    await give(engine, weights, 1)
    updated = await _one_by_one(engine)
    fresh_engine = await _started(trained, tmp_path / "fresh.log")
    fresh = await _one_by_one(fresh_engine)
    await fresh_engine.close()
    assert updated == fresh
    assert updated != before
    await give(engine, load_file(smollm2 / "model.safetensors"), 0)
    assert await _one_by_one(engine) == before


async def _one_by_one(engine: VLLMGenerator) -> list[tuple[list[int], list[float]]]:
    """Sampled and greedy responses. Which requests share a forward pass depends on when they arrive, and with it
    the rounding of bfloat16: so each has its passes for itself."""
    batch = [*requests(3, max_tokens=24), *requests(3, max_tokens=24, temperature=0.0, prefix="greedy")]
    generations = [(await engine.generate([request]))[0] for request in batch]
    return [(generation.response_ids, generation.logprobs) for generation in generations]
