"""The vLLM engine on a tiny random Llama in float32: what it samples, scores, aborts, and does when it dies."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from rlcore.generation.interface import EngineDied, EngineUnfit, GenerationRequest
from rlcore.generation.vllm import VLLMGenerator
from tests.stack.generation import give, reference_logits, reference_logprobs, requests
from tests.stack.generation_engine.shared import LONG, TOLERANCE, config_around, engine_process, tokens, weights_of

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.timeout(300)]


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
        assert tokens([again[request_id]]) == tokens([generation])
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
    assert tokens(generations[8:]) == tokens(whole[8:])


async def test_asking_again_ends_what_a_caller_that_is_gone_left_running(engine: VLLMGenerator) -> None:
    batch = requests(24, max_tokens=LONG)
    left = asyncio.create_task(engine.generate(batch))
    await asyncio.sleep(0.3)
    again = await engine.generate(batch)
    assert any(generation.finish_reason == "abort" for generation in await left)
    assert all(generation.finish_reason != "abort" for generation in again)
    assert tokens(again) == tokens(await engine.generate(batch))


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
    engine_b: VLLMGenerator, model_b: Path, log_b: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    batch = requests(4, max_tokens=LONG)
    before = await engine_b.generate(batch)
    await give(engine_b, weights_of(model_b), 4)
    running = asyncio.create_task(engine_b.generate(batch))
    await asyncio.sleep(0.2)
    os.kill(engine_process(log_b), signal.SIGKILL)
    message = rf"the vLLM engine of {re.escape(str(model_b))} died; its log is {re.escape(str(log_b))}"
    with pytest.raises(EngineDied, match=message):
        await running
    for call in (engine_b.generate(batch), engine_b.policy_version(), engine_b.score([1], [2], 1.0)):
        with pytest.raises(EngineDied, match=message):
            await call
    with pytest.raises(EngineDied, match=message):
        await give(engine_b, weights_of(model_b), 5)
    await engine_b.start()
    await engine_b.start()
    assert await engine_b.policy_version() == 0
    assert tokens(await engine_b.generate(batch)) == tokens(before)
    printed = capfd.readouterr()
    assert "EngineCore" not in printed.out + printed.err


async def test_closing_ends_running_requests(engine_b: VLLMGenerator, log_b: Path) -> None:
    process = psutil.Process(engine_process(log_b))
    running = asyncio.create_task(engine_b.generate(requests(4, max_tokens=LONG)))
    await asyncio.sleep(0.2)
    await engine_b.close()
    with pytest.raises(EngineDied, match="was closed"):
        await running
    process.wait(timeout=10)


async def test_an_engine_that_does_not_come_up_says_why(model_a: Path, tmp_path: Path) -> None:
    config = config_around(model_a)
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
    (tmp_path / "config.json").write_text(config_around(model_a).model_dump_json())
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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="only on a GPU does vLLM give back memory")
async def test_an_engine_that_sleeps_gives_back_memory_and_wakes_with_its_weights(engine: VLLMGenerator) -> None:
    batch = requests(8)
    before = await engine.generate(batch)
    free, _ = torch.cuda.mem_get_info()
    await engine.sleep()
    asleep, _ = torch.cuda.mem_get_info()
    await engine.start()
    assert asleep > free + 2**27
    assert tokens(await engine.generate(batch)) == tokens(before)
