"""Two engines of vLLM answer one batch, and one of them dies in the middle of it. On Ray."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rlcore.cluster.engine import engines, graders
from rlcore.cluster.residents import release
from rlcore.cluster.rollouts import rollouts
from rlcore.compose import compose
from rlcore.config import Config
from rlcore.data.prompts import training_sampler
from rlcore.store import RunStore
from tests.ray_process import ray_process
from tests.stack.pipeline import tiny_training, wait_until

pytestmark = pytest.mark.timeout(300)

PROMPTS, GROUP, AT_ONCE = 8, 8, 8
"""AT_ONCE: requests that an engine runs."""
KILLED_AFTER = 20
"""Responses."""


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    with ray_process() as made:
        yield made


def collected(config: Config, kill_after: int | None) -> tuple[pl.DataFrame, list[dict[str, Any]]]:
    """A batch, and the responses in the order in which they were graded; engine-0 is killed on the way."""
    store = RunStore(config.run_url)
    store.directory.mkdir(parents=True)
    store.assign_run_id()
    prompts = training_sampler(config).draw(0, PROMPTS)
    serving, scheduler, grading = engines(config, store), rollouts(config, store), graders(config, store)
    killer = threading.Thread(target=kill_engine, args=(store, kill_after))
    if kill_after is not None:
        killer.start()
    batch = scheduler.collect(1, prompts, serving, grading)
    if kill_after is not None:
        killer.join()
    release(store.run_id)
    return batch.sort("sample_id"), graded(store)


def kill_engine(store: RunStore, after: int) -> None:
    wait_until(lambda: len(graded(store)) >= after, f"{after} graded responses")
    log = (store.directory / "logs" / "engine-0.log").read_text()
    os.kill(int(re.findall(r"EngineCore pid=(\d+)", log)[-1]), signal.SIGKILL)


def graded(store: RunStore) -> list[dict[str, Any]]:
    journal = store.directory / "iterations" / "000001" / "journal.jsonl"
    whole = journal.read_text().rpartition("\n")[0] if journal.exists() else ""
    return [line for line in map(json.loads, whole.splitlines()) if line["kind"] == "graded"]


def test_an_engine_killed_in_the_middle_of_a_batch_costs_what_it_was_at_and_nothing_else(
    process: ProcessPoolExecutor, tiny_llama: Path, tmp_path: Path
) -> None:
    overrides = [
        *tiny_training(tmp_path, tiny_llama),
        "hardware.engines=2",
        f"hardware.max_num_seqs={AT_ONCE}",
        f"rollout.rollout_batch_size={PROMPTS}",
        f"rollout.num_return_sequences_in_group={GROUP}",
        "rollout.response_length=24",
    ]
    whole, _ = process.submit(collected, compose("arithmetic", [*overrides, "run=whole"]), None).result()
    batch, order = process.submit(collected, compose("arithmetic", [*overrides, "run=killed"]), KILLED_AFTER).result()
    assert len(batch) == PROMPTS * GROUP
    same = ["sample_id", "prompt_ids", "response_ids", "rollout_logprobs", "policy_versions"]
    assert batch.select(same).equals(whole.select(same))
    assert set(Counter(line["request_id"] for line in order).values()) == {1}
    again = [line for line in order if not line["generation"]["request_id"].endswith(".1")]
    assert 0 < len(again) <= AT_ONCE
