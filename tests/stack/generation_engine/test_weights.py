"""vLLM is given new weights: all of them, or it serves nothing."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest
import torch
from safetensors.torch import load_file

from rlcore.generation.interface import EngineDied
from rlcore.generation.vllm import VLLMGenerator
from rlcore.reports import SyncReport
from rlcore.sync_check import SyncFailed, Transfer, check_sync
from rlcore.trainer.rank import TrainerRank
from rlcore.weights.bucket import weights_sha256
from rlcore.weights.shared_memory import SharedMemory, in_buckets, places_in_file, read_bucket
from tests.stack.generation import give, reference_logprobs, requests
from tests.stack.generation_engine.shared import LONG, TOLERANCE, engine_process, tokens, weights_of
from tests.stack.training import Call, run_world, train_batch, trainer_config

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.timeout(300)]


async def test_an_updated_engine_equals_a_fresh_one_bit_for_bit(
    engine: VLLMGenerator, engine_b: VLLMGenerator, model_a: Path, model_b: Path
) -> None:
    batch = [*requests(8, max_tokens=24), *requests(8, max_tokens=24, temperature=0.0, prefix="greedy")]
    before = await engine.generate(batch)
    fresh = await engine_b.generate(batch)
    await give(engine, weights_of(model_b), 5)
    updated = await engine.generate(batch)
    assert tokens(updated) == tokens(fresh)
    assert tokens(updated) != tokens(before)
    assert {version for generation in updated for version in generation.policy_versions} == {5}
    assert await engine.policy_version() == 5
    await give(engine, weights_of(model_a), 0)
    assert tokens(await engine.generate(batch)) == tokens(before)


async def test_the_weights_of_a_model_divided_over_four_ranks_pass_the_sync_check(
    engine: VLLMGenerator, model_a: Path, tmp_path: Path
) -> None:
    layout = {"world_size": 4, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}
    config, batch = trainer_config(model_a, trainer=layout), train_batch()
    script: list[Call] = [
        ("update", (1, "1", batch)),
        ("export_weights", (str(tmp_path / "weights.safetensors"),)),
        ("logprobs", (batch,)),
        ("start_export", (2**30,)),
        ("next_bucket", ()),
        ("next_bucket", ()),
    ]
    with ThreadPoolExecutor(1) as waiting:
        ranks = await asyncio.wrap_future(waiting.submit(run_world, (TrainerRank, config, script)))
    [first, *others] = ranks
    bucket, end = first[0][4:]
    in_file = list(places_in_file(tmp_path / "weights.safetensors"))
    assert weights_sha256(bucket.tensors) == weights_sha256(in_file)
    assert bucket.bytes == sum(place.bytes for place in in_file)
    assert end is None
    assert [other[0][4].tensors for other in others] == [()] * 3
    trained = pl.concat([results[2] for [results] in ranks])
    scores = batch.select("sample_id").join(trained, on="sample_id", maintain_order="left")["logprobs"]

    async def engine_scores() -> pl.Series:
        rows = batch.select("prompt_ids", "response_ids").iter_rows()
        return pl.Series([await engine.score(prompt, response, 1.0) for prompt, response in rows])

    def check(engine_version: int, engine_logprobs: pl.Series) -> SyncReport:
        return check_sync(
            Transfer(bytes=0, weights_sha256="", seconds=0.0),
            engine="engine-0",
            wanted_version=1,
            engine_version=engine_version,
            engine_logprobs=engine_logprobs,
            trainer_logprobs=scores,
            tolerance=TOLERANCE,
        )

    with pytest.raises(SyncFailed, match="differ by"):
        check(1, await engine_scores())
    await give(engine, load_file(tmp_path / "weights.safetensors"), 1)
    assert check(await engine.policy_version(), await engine_scores()).probe_gap_mean < TOLERANCE / 10
    await give(engine, weights_of(model_a), 0)


async def test_a_request_that_lives_through_an_update_has_the_version_of_each_token(
    engine: VLLMGenerator, model_a: Path, model_b: Path
) -> None:
    batch = requests(24, max_tokens=LONG)
    started = time.monotonic()
    undisturbed = await engine.generate(batch)
    half = (time.monotonic() - started) / 2
    running = asyncio.create_task(engine.generate(batch))
    await asyncio.sleep(half)
    await give(engine, weights_of(model_b), 3)
    generations = await running
    await give(engine, weights_of(model_a), 0)
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


async def test_an_engine_that_dies_during_an_update_serves_nothing(
    engine_b: VLLMGenerator, model_b: Path, log_b: Path
) -> None:
    await engine_b.start_update()
    os.kill(engine_process(log_b), signal.SIGKILL)
    [tensors, *_] = in_buckets(weights_of(model_b).items(), 2**20)
    with pytest.raises(EngineDied, match=rf"died while it was given new weights; its log is {re.escape(str(log_b))}"):
        await engine_b.load_bucket(SharedMemory().write(tensors))
    with pytest.raises(EngineDied, match=r"is not running: call start\(\)"):
        await engine_b.generate(requests(1))
    await engine_b.start()
    assert await engine_b.policy_version() == 0


async def test_an_engine_left_in_the_middle_of_an_update_starts_anew(engine_b: VLLMGenerator, model_b: Path) -> None:
    before = await engine_b.generate(requests(4))
    [tensors, *_] = in_buckets(weights_of(model_b).items(), 2**20)
    await engine_b.start_update()
    await engine_b.load_bucket(SharedMemory().write(tensors))
    await engine_b.start()
    with pytest.raises(EngineDied, match="no longer the one whose update was started"):
        await engine_b.finish_update(7)
    assert await engine_b.policy_version() == 0
    assert tokens(await engine_b.generate(requests(4))) == tokens(before)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ("lost", r"1 tensors did not come, of the model .*: model\.norm\.weight"),
        ("reshaped", r"1 tensors have another shape than in the model .*: model\.norm\.weight"),
        ("flipped", r"model\.norm\.weight in /proc/.* was damaged on its way"),
    ],
)
async def test_weights_that_are_not_the_models_end_an_engine_that_says_why(
    engine_b: VLLMGenerator, model_b: Path, damage: str, why: str
) -> None:
    weights = weights_of(model_b)
    norm = weights.pop("model.norm.weight")
    if damage == "reshaped":
        weights["model.norm.weight"] = norm[:-1]
    memory = SharedMemory()

    async def update() -> None:
        await engine_b.start_update()
        await engine_b.load_bucket(memory.write([*weights.items()]))
        if damage == "flipped":
            bucket = memory.write([("model.norm.weight", norm)])
            [(_, received)] = read_bucket(bucket)
            received[0] += 1
            await engine_b.load_bucket(bucket)
        await engine_b.finish_update(8)

    with pytest.raises(EngineDied, match=why):
        await update()
    await engine_b.start()
