"""The vLLM engine on a tiny random Llama in float32: what it samples, scores, aborts, and does when it dies."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import psutil
import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file, save_file

from rlcore.config import Config
from rlcore.generation.interface import EngineDied, EngineUnfit, Generation, GenerationRequest
from rlcore.generation.vllm import VLLMGenerator
from rlcore.reports import SyncReport
from rlcore.sync_check import SyncFailed, Transfer, check_sync
from rlcore.trainer.rank import TrainerRank
from tests.stack.conftest import save_tiny_llama
from tests.stack.generation import engine_config, reference_logits, reference_logprobs, requests
from tests.stack.training import Call, run_world, train_batch, trainer_config

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

TOLERANCE = 1e-3
LONG = 320


@pytest.fixture(scope="module")
def model_a(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, with a generation_config that would change every distribution if it were obeyed."""
    directory = tmp_path_factory.mktemp("model-a")
    shutil.copytree(tiny_llama, directory, dirs_exist_ok=True)
    path = directory / "generation_config.json"
    smuggled = {"temperature": 0.1, "top_k": 1, "repetition_penalty": 5.0, "do_sample": True, "max_new_tokens": 1}
    path.write_text(json.dumps(json.loads(path.read_text()) | smuggled))
    return directory


@pytest.fixture(scope="module")
def model_b(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("model-b"), tokenizer_from=smollm2, seed=1)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs") / "engine.log"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(model_a: Path, log: Path) -> AsyncIterator[VLLMGenerator]:
    generator = VLLMGenerator(_config(model_a), str(log))
    await generator.start()
    yield generator
    await generator.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine_b(model_b: Path, log: Path) -> AsyncIterator[VLLMGenerator]:
    generator = VLLMGenerator(_config(model_b), str(log.with_name("engine-b.log")))
    await generator.start()
    yield generator
    await generator.close()


def _config(model: Path) -> Config:
    return engine_config(model, dtype="float32", prompt_length=32, response_length=LONG)


def _weights(model: Path) -> str:
    return str(model / "model.safetensors")


def _engine_process(log: Path) -> int:
    """Process id of the engine that writes this log. (This process has several engines.)"""
    return int(re.findall(r"EngineCore pid=(\d+)", log.read_text())[-1])


def _tokens(generations: list[Generation]) -> list[tuple[list[int], list[float]]]:
    return [(generation.response_ids, generation.logprobs) for generation in generations]


async def test_logprobs_are_of_the_distribution_sampled_from(engine: VLLMGenerator, model_a: Path) -> None:
    batch = [
        request
        for temperature in (0.0, 0.7, 1.0, 1.3)
        for request in requests(2, max_tokens=24, temperature=temperature, prefix=f"t{temperature}-")
    ]
    for request, generation in zip(batch, await engine.generate(batch), strict=True):
        expected = reference_logprobs(
            model_a, list(request.prompt_ids), generation.response_ids, request.temperature or 1.0
        )
        torch.testing.assert_close(torch.tensor(generation.logprobs), expected, atol=TOLERANCE, rtol=0)
        assert generation.request_id == request.request_id


async def test_greedy_takes_the_likeliest_token(engine: VLLMGenerator, model_a: Path) -> None:
    batch = requests(2, max_tokens=24, temperature=0.0)
    for request, generation in zip(batch, await engine.generate(batch), strict=True):
        logits = reference_logits(model_a, list(request.prompt_ids), generation.response_ids)
        assert generation.response_ids == logits.argmax(-1).tolist()


async def test_sampled_tokens_follow_the_whole_distribution(engine: VLLMGenerator, model_a: Path) -> None:
    """The mean log-probability of samples is minus the entropy; any filter or sharpening would raise it."""
    temperature, samples = 0.5, 512
    prompt_ids = requests(1)[0].prompt_ids
    batch = [GenerationRequest(f"draw{seed}", prompt_ids, 1, temperature, seed) for seed in range(samples)]
    drawn = torch.tensor([generation.logprobs[0] for generation in await engine.generate(batch)])
    logprobs = (reference_logits(model_a, list(prompt_ids), [0])[0] / temperature).log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum()
    spread = ((logprobs.exp() * logprobs**2).sum() - entropy**2).sqrt()
    assert abs(drawn.mean() + entropy) < 4 * spread / samples**0.5


async def test_the_seed_decides_not_the_order_or_the_company(engine: VLLMGenerator) -> None:
    batch = requests(12, max_tokens=24)
    strangers = [GenerationRequest(f"x{i}", [7, i + 1], 9, 1.0, 1000 + i) for i in range(5)]
    first = {generation.request_id: generation for generation in await engine.generate(batch)}
    again = {generation.request_id: generation for generation in await engine.generate([*strangers, *batch[::-1]])}
    for request_id, generation in first.items():
        assert _tokens([again[request_id]]) == _tokens([generation])
    same_prompt = [GenerationRequest(f"s{seed}", batch[0].prompt_ids, 24, 1.0, seed) for seed in range(8)]
    assert len({tuple(generation.response_ids) for generation in await engine.generate(same_prompt)}) == 8


async def test_score_equals_transformers_at_any_temperature_and_the_engines_own_samples(
    engine: VLLMGenerator, model_a: Path
) -> None:
    batch = requests(4, max_tokens=24)
    generations = await engine.generate(batch)
    prompt_ids, response_ids = list(batch[0].prompt_ids), generations[0].response_ids
    for temperature in (0.7, 1.0, 1.6):
        scored = torch.tensor(await engine.score(prompt_ids, response_ids, temperature))
        expected = reference_logprobs(model_a, prompt_ids, response_ids, temperature)
        torch.testing.assert_close(scored, expected, atol=TOLERANCE, rtol=0)
    own = torch.tensor(await engine.score(prompt_ids, response_ids, 1.0))
    torch.testing.assert_close(own, torch.tensor(generations[0].logprobs), atol=1e-5, rtol=0)
    assert await engine.score(prompt_ids, response_ids, 0.0) == own.tolist()
    assert await engine.score(prompt_ids, [], 1.0) == []


async def test_scoring_among_running_requests_changes_neither(engine: VLLMGenerator) -> None:
    batch = requests(4, max_tokens=48)
    alone = await engine.generate(batch)
    prompt_ids, response_ids = list(batch[0].prompt_ids), alone[0].response_ids
    quiet = await engine.score(prompt_ids, response_ids, 0.7)
    running = asyncio.create_task(engine.generate(batch))
    scores = await asyncio.gather(*(engine.score(prompt_ids, response_ids, 0.7) for _ in range(3)))
    assert [generation.response_ids for generation in await running] == [
        generation.response_ids for generation in alone
    ]
    for busy in scores:
        assert busy == pytest.approx(quiet, abs=1e-5)


async def test_an_updated_engine_equals_a_fresh_one_bit_for_bit(
    engine: VLLMGenerator, engine_b: VLLMGenerator, model_a: Path, model_b: Path
) -> None:
    batch = [*requests(8, max_tokens=24), *requests(8, max_tokens=24, temperature=0.0, prefix="greedy")]
    before = await engine.generate(batch)
    fresh = await engine_b.generate(batch)
    seconds = await engine.update_weights(_weights(model_b), 5)
    updated = await engine.generate(batch)
    assert _tokens(updated) == _tokens(fresh)
    assert _tokens(updated) != _tokens(before)
    assert {version for generation in updated for version in generation.policy_versions} == {5}
    assert await engine.policy_version() == 5
    assert seconds > 0
    await engine.update_weights(_weights(model_a), 0)
    assert _tokens(await engine.generate(batch)) == _tokens(before)


async def test_the_weights_of_a_model_divided_over_four_ranks_pass_the_sync_check(
    engine: VLLMGenerator, model_a: Path, tmp_path: Path
) -> None:
    layout = {"world_size": 4, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}
    config, batch = trainer_config(model_a, trainer=layout), train_batch()
    script: list[Call] = [
        ("update", (1, "1", batch)),
        ("export_weights", (str(tmp_path / "weights.safetensors"),)),
        ("logprobs", (batch,)),
    ]
    with ThreadPoolExecutor(1) as waiting:
        ranks = await asyncio.wrap_future(waiting.submit(run_world, (TrainerRank, config, script)))
    trained = pl.concat([results[2] for [results] in ranks])
    scores = batch.select("sample_id").join(trained, on="sample_id", maintain_order="left")["logprobs"]

    async def engine_scores() -> pl.Series:
        rows = batch.select("prompt_ids", "response_ids").iter_rows()
        return pl.Series([await engine.score(prompt, response, 1.0) for prompt, response in rows])

    def check(engine_version: int, engine_logprobs: pl.Series) -> SyncReport:
        return check_sync(
            Transfer(bytes=0, weights_sha256="", export_seconds=0.0, load_seconds=0.0),
            engine="engine-0",
            wanted_version=1,
            engine_version=engine_version,
            engine_logprobs=engine_logprobs,
            trainer_logprobs=scores,
            tolerance=TOLERANCE,
        )

    with pytest.raises(SyncFailed, match="differ by"):
        check(1, await engine_scores())
    await engine.update_weights(str(tmp_path / "weights.safetensors"), 1)
    assert check(await engine.policy_version(), await engine_scores()).probe_gap_mean < TOLERANCE / 10
    await engine.update_weights(_weights(model_a), 0)


async def test_a_request_that_lives_through_an_update_has_the_version_of_each_token(
    engine: VLLMGenerator, model_a: Path, model_b: Path
) -> None:
    batch = requests(24, max_tokens=LONG)
    started = time.monotonic()
    undisturbed = await engine.generate(batch)
    half = (time.monotonic() - started) / 2
    running = asyncio.create_task(engine.generate(batch))
    await asyncio.sleep(half)
    await engine.update_weights(_weights(model_b), 3)
    generations = await running
    await engine.update_weights(_weights(model_a), 0)
    lived_through = [
        (request, generation, whole)
        for request, generation, whole in zip(batch, generations, undisturbed, strict=True)
        if set(generation.policy_versions) == {0, 3}
    ]
    assert lived_through
    for request, generation, whole in lived_through[:3]:
        switch = generation.policy_versions.index(3)
        assert generation.policy_versions == [0] * switch + [3] * (len(generation.response_ids) - switch)
        assert generation.response_ids[:switch] == whole.response_ids[:switch]
        prompt_ids, response_ids = list(request.prompt_ids), generation.response_ids
        old, new = (reference_logprobs(model, prompt_ids, response_ids, 1.0) for model in (model_a, model_b))
        expected = torch.cat([old[:switch], new[switch:]])
        torch.testing.assert_close(torch.tensor(generation.logprobs), expected, atol=TOLERANCE, rtol=0)


async def test_a_weights_file_that_does_not_fit_is_refused_and_the_old_weights_serve_on(
    engine: VLLMGenerator, model_a: Path, tmp_path: Path
) -> None:
    batch = requests(4, max_tokens=8)
    before = await engine.generate(batch)
    weights = load_file(_weights(model_a))
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "partial.safetensors")
    with pytest.raises(ValueError, match=r"partial\.safetensors lacks 1 tensors .*: model\.norm\.weight"):
        await engine.update_weights(str(tmp_path / "partial.safetensors"), 9)
    with pytest.raises(FileNotFoundError, match="absent"):
        await engine.update_weights(str(tmp_path / "absent.safetensors"), 9)
    assert await engine.policy_version() == 0
    assert _tokens(await engine.generate(batch)) == _tokens(before)


async def test_aborted_requests_return_what_they_have(engine: VLLMGenerator) -> None:
    batch = requests(24, max_tokens=LONG)
    started = time.monotonic()
    whole = await engine.generate(batch)
    half = (time.monotonic() - started) / 2
    running = asyncio.create_task(engine.generate(batch))
    await asyncio.sleep(half)
    await engine.abort([request.request_id for request in batch[:8]] + ["never-submitted"])
    generations = await running
    aborted = [
        (generation, complete)
        for generation, complete in zip(generations[:8], whole[:8], strict=True)
        if generation.finish_reason == "abort"
    ]
    assert aborted
    for generation, complete in aborted:
        count = len(generation.response_ids)
        assert 0 < count < len(complete.response_ids)
        assert generation.response_ids == complete.response_ids[:count]
        assert len(generation.logprobs) == len(generation.policy_versions) == count
    assert _tokens(generations[8:]) == _tokens(whole[8:])


async def test_asking_again_ends_what_a_caller_that_is_gone_left_running(engine: VLLMGenerator) -> None:
    batch = requests(24, max_tokens=LONG)
    left = asyncio.create_task(engine.generate(batch))
    await asyncio.sleep(0.3)
    again = await engine.generate(batch)
    assert any(generation.finish_reason == "abort" for generation in await left)
    assert all(generation.finish_reason != "abort" for generation in again)
    assert _tokens(again) == _tokens(await engine.generate(batch))


async def test_requests_that_cannot_be_served_are_named(engine: VLLMGenerator) -> None:
    with pytest.raises(ValueError, match=r"long: 33 prompt tokens and 320 response tokens .* 352 \(data.prompt_length"):
        await engine.generate([GenerationRequest("long", [5] * 33, LONG, 1.0, 0)])
    with pytest.raises(ValueError, match="nothing: the prompt is empty"):
        await engine.generate([GenerationRequest("nothing", [], 4, 1.0, 0)])
    with pytest.raises(ValueError, match="same request_id"):
        await engine.generate([*requests(1), *requests(1)])
    with pytest.raises(ValueError, match="score: "):
        await engine.score([5] * 32, [5] * (LONG + 1), 1.0)


async def test_the_longest_sequence_is_generated_and_scored(engine: VLLMGenerator) -> None:
    request = GenerationRequest("longest", [5] * 32, LONG, 1.0, 3)
    generation = (await engine.generate([request]))[0]
    assert (len(generation.response_ids), generation.finish_reason) == (LONG, "length")
    assert len(await engine.score(request.prompt_ids, generation.response_ids, 1.0)) == LONG


async def test_a_dead_engine_says_so_and_starts_anew(
    engine_b: VLLMGenerator, model_b: Path, log: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    batch = requests(4, max_tokens=LONG)
    before = await engine_b.generate(batch)
    await engine_b.update_weights(_weights(model_b), 4)
    own_log = log.with_name("engine-b.log")
    running = asyncio.create_task(engine_b.generate(batch))
    await asyncio.sleep(0.2)
    os.kill(_engine_process(own_log), signal.SIGKILL)
    message = rf"the vLLM engine of {re.escape(str(model_b))} died; its log is {re.escape(str(own_log))}"
    with pytest.raises(EngineDied, match=message):
        await running
    for call in (engine_b.generate(batch), engine_b.policy_version(), engine_b.score([1], [2], 1.0)):
        with pytest.raises(EngineDied, match=message):
            await call
    with pytest.raises(EngineDied, match=message):
        await engine_b.update_weights(_weights(model_b), 5)
    await engine_b.start()
    await engine_b.start()
    assert await engine_b.policy_version() == 0
    assert _tokens(await engine_b.generate(batch)) == _tokens(before)
    printed = capfd.readouterr()
    assert "EngineCore" not in printed.out + printed.err


async def test_an_engine_that_dies_during_an_update_serves_nothing(
    engine_b: VLLMGenerator, model_b: Path, log: Path
) -> None:
    own_log = log.with_name("engine-b.log")
    os.kill(_engine_process(own_log), signal.SIGKILL)
    path = re.escape(_weights(model_b))
    with pytest.raises(EngineDied, match=rf"died while it loaded {path}; its log is {re.escape(str(own_log))}"):
        await engine_b.update_weights(_weights(model_b), 6)
    with pytest.raises(EngineDied, match=r"is not running: call start\(\)"):
        await engine_b.generate(requests(1))
    await engine_b.start()
    assert await engine_b.policy_version() == 0


async def test_closing_ends_running_requests(engine_b: VLLMGenerator, log: Path) -> None:
    process = psutil.Process(_engine_process(log.with_name("engine-b.log")))
    running = asyncio.create_task(engine_b.generate(requests(4, max_tokens=LONG)))
    await asyncio.sleep(0.2)
    await engine_b.close()
    with pytest.raises(EngineDied, match="was closed"):
        await running
    process.wait(timeout=10)


async def test_an_engine_that_does_not_come_up_says_why(model_a: Path, tmp_path: Path) -> None:
    config = _config(model_a)
    too_small = config.model_copy(update={"hardware": config.hardware.model_copy(update={"kv_cache_gib": 1e-6})})
    generator = VLLMGenerator(too_small, str(tmp_path / "small.log"))
    with pytest.raises(
        EngineUnfit, match=r"refuses to start: ValueError: No available memory for the cache.*; its log is .*small\.log"
    ):
        await generator.start()
    with pytest.raises(EngineDied, match=r"call start\(\)"):
        await generator.policy_version()


async def test_the_engine_ends_when_its_parent_is_killed(
    model_a: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (tmp_path / "config.json").write_text(_config(model_a).model_dump_json())
    program = (
        "import asyncio, sys; from pathlib import Path\n"
        "from rlcore.config import Config; from rlcore.generation.vllm import VLLMGenerator\n"
        "async def main():\n"
        "    config = Config.model_validate_json(Path(sys.argv[1]).read_text())\n"
        "    await VLLMGenerator(config, sys.argv[2]).start()\n"
        "    print('started', flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "config.json"), str(tmp_path / "orphan.log")],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path_factory.mktemp("tmp"))},
    )
    assert parent.stdout is not None
    with parent.stdout:
        assert await asyncio.to_thread(parent.stdout.readline) == b"started\n"
    engine_processes = psutil.Process(parent.pid).children(recursive=True)
    assert engine_processes
    parent.kill()
    parent.wait()
    _, alive = await asyncio.to_thread(psutil.wait_procs, engine_processes, timeout=15)
    assert alive == []
