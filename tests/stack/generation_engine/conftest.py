"""Two engines, each on a tiny random Llama in float32."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from rlcore.generation.vllm import VLLMGenerator
from tests.stack.conftest import save_tiny_llama
from tests.stack.generation_engine.shared import config_around


@pytest.fixture(scope="package")
def model_a(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, with a generation_config that would change every distribution if it were obeyed."""
    directory = tmp_path_factory.mktemp("model-a")
    shutil.copytree(tiny_llama, directory, dirs_exist_ok=True)
    path = directory / "generation_config.json"
    smuggled = {"temperature": 0.1, "top_k": 1, "repetition_penalty": 5.0, "do_sample": True, "max_new_tokens": 1}
    path.write_text(json.dumps(json.loads(path.read_text()) | smuggled))
    return directory


@pytest.fixture(scope="package")
def model_b(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("model-b"), tokenizer_from=smollm2, seed=1)


@pytest.fixture(scope="package")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of `engine`."""
    return tmp_path_factory.mktemp("logs") / "engine.log"


@pytest.fixture(scope="package")
def log_b(log: Path) -> Path:
    return log.with_name("engine-b.log")


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def engine(model_a: Path, log: Path) -> AsyncIterator[VLLMGenerator]:
    generator = VLLMGenerator(config_around(model_a), str(log))
    await generator.start()
    yield generator
    await generator.close()


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def other_engine(model_b: Path, log_b: Path) -> AsyncIterator[VLLMGenerator]:
    generator = VLLMGenerator(config_around(model_b), str(log_b))
    yield generator
    await generator.close()


@pytest_asyncio.fixture(loop_scope="package")
async def engine_b(other_engine: VLLMGenerator) -> VLLMGenerator:
    """Started again, where a test has ended it."""
    await other_engine.start()
    return other_engine
