"""Processes that stand still in the middle of their work are found out, their stacks kept, and the work done anew."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import psutil
import pytest

from rlcore.batches import TrainBatch
from rlcore.cluster.policy import engines_at, trainer_for_update
from rlcore.cluster.residents import release
from rlcore.config import Config
from rlcore.deadlines import DeadlineExceeded, StageStalled, within
from rlcore.generation.interface import GenerationRequest
from rlcore.progress import Progress, progress_file, read_progress
from rlcore.store import BatchRef, RunStore
from tests.ray_process import ray_process
from tests.stack.generation import requests
from tests.stack.training import train_batch, trainer_config

pytestmark = pytest.mark.timeout(300)

STALL_SECONDS = 6.0
SLACK_SECONDS = 10.0
"""For the stacks, and for the ends of processes."""


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    with ray_process() as made:
        yield made


@pytest.fixture
def run(process: ProcessPoolExecutor, tiny_llama: Path, tmp_path: Path) -> Iterator[tuple[Config, RunStore]]:
    config = trainer_config(
        tiny_llama,
        deadlines={"stall_seconds": STALL_SECONDS},
        rollout={"response_length": 448},
        trainer={"max_tokens_per_micro_batch": 64},
        hardware={"kv_cache_gib": 0.25},
    )
    store = RunStore(str(tmp_path / "run"))
    store.assign_run_id()
    yield config, store
    process.submit(release, store.run_id).result()


def make_trainer(config: Config, store: RunStore) -> None:
    trainer_for_update(config, store, 1)


def update(config: Config, store: RunStore, batch: BatchRef) -> int:
    trainer = trainer_for_update(config, store, 1)
    return trainer.update(1, batch.sha256, store.read_batch(batch)).policy_version


def update_within(seconds: float, config: Config, store: RunStore, batch: BatchRef) -> int:
    with within(seconds):
        return update(config, store, batch)


def generate(config: Config, store: RunStore, wanted: list[GenerationRequest]) -> list[list[int]]:
    return [generation.response_ids for generation in engines_at(config, store, 0).generate(wanted)]


def await_progress(store: RunStore, name: str, is_there: Callable[[Progress], bool]) -> Progress:
    """What an actor says as soon as it has come that far."""
    end = time.monotonic() + 120
    while (progress := read_progress(progress_file(store.directory, name))) is None or not is_there(progress):
        assert time.monotonic() < end, f"{name} did not get there: {progress}"
        time.sleep(0.05)
    return progress


def await_ended(*pids: int) -> None:
    end = time.monotonic() + 20
    while there := [pid for pid in pids if psutil.pid_exists(pid)]:
        assert time.monotonic() < end, f"still there: {there}"
        time.sleep(0.05)


def counted(progress: Progress, unit: str) -> int:
    return next((step.done or 0 for step in progress.steps if step.name == unit), 0)


def stacks_of(store: RunStore, name: str) -> str:
    [file] = store.directory.glob(f"stacks/*-{name}.txt")
    return file.read_text()


def test_a_trainer_that_stands_still_in_an_update_is_ended_and_the_next_attempt_updates(
    process: ProcessPoolExecutor, run: tuple[Config, RunStore]
) -> None:
    config, store = run
    batch = store.write_batch(1, "train", train_batch(rows=200), TrainBatch)
    process.submit(make_trainer, config, store).result()
    attempt = process.submit(update, config, store, batch)
    stuck = await_progress(store, "trainer-0", lambda progress: counted(progress, "micro-batches") > 0)
    os.kill(stuck.pid, signal.SIGSTOP)
    stopped = time.monotonic()
    with pytest.raises(
        StageStalled, match=r"update by trainer stands still: no progress in 6 s; trainer-0 \(process"
    ) as stall:
        attempt.result()
    assert time.monotonic() - stopped < STALL_SECONDS + SLACK_SECONDS
    assert f"(process {stuck.pid} on " in str(stall.value) and " micro-batches) was ended" in str(stall.value)
    said = stacks_of(store, "trainer-0")
    assert f"{stuck.pid}, stopped" in said and "_accumulate_gradients (" in said and "train_passes (" in said
    await_ended(stuck.pid)

    assert process.submit(update, config, store, batch).result() == 1


def test_an_engine_that_stands_still_while_it_generates_is_ended_and_the_next_attempt_generates(
    process: ProcessPoolExecutor, run: tuple[Config, RunStore]
) -> None:
    config, store = run
    wanted = requests(64, max_tokens=440)
    attempt = process.submit(generate, config, store, wanted)
    actor = await_progress(store, "engine-0", lambda progress: counted(progress, "tokens") > 0)
    [stuck] = [child for child in psutil.Process(actor.pid).children() if "EngineCore" in child.name()]
    stuck.suspend()
    stopped = time.monotonic()
    with pytest.raises(StageStalled, match=r"/64 responses, [1-9]\d* tokens\) was ended"):
        attempt.result()
    assert time.monotonic() - stopped < STALL_SECONDS + SLACK_SECONDS
    said = stacks_of(store, "engine-0")
    assert f"{stuck.pid}, stopped" in said and "EngineCore.step (" in said
    await_ended(stuck.pid, actor.pid)

    responses = process.submit(generate, config, store, wanted[:8]).result()
    assert len(responses) == 8 and all(responses)


def test_a_stage_that_moves_but_takes_too_long_is_ended(
    process: ProcessPoolExecutor, run: tuple[Config, RunStore]
) -> None:
    config, store = run
    batch = store.write_batch(1, "train", train_batch(rows=2000), TrainBatch)
    process.submit(make_trainer, config, store).result()
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"update by trainer takes too long; trainer-0 .* was ended"):
        process.submit(update_within, 3.0, config, store, batch).result()
    assert 3.0 < time.monotonic() - started < 3.0 + SLACK_SECONDS
    assert "train_passes (" in stacks_of(store, "trainer-0")
