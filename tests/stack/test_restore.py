"""A trainer that died comes back from its checkpoints, damaged ones among them, and the recorded batches. On Ray."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from logging.handlers import QueueHandler
from pathlib import Path
from queue import SimpleQueue

import polars as pl
import pytest
import torch
from safetensors.torch import load_file

from rlcore.batches import TrainBatch
from rlcore.cluster.checkpoints import save_checkpoint
from rlcore.cluster.engine import graders
from rlcore.cluster.policy import trainer_at, trainer_for_update
from rlcore.cluster.residents import actor_names, release
from rlcore.compose import compose, dump
from rlcore.config import Config
from rlcore.lineage import FORK_FILE, Fork
from rlcore.pruning import plan_pruning, prune
from rlcore.store import RunStore, StoreError
from rlcore.trainer.checkpoint import CheckpointDamaged, published
from tests.entries import ledger_entry
from tests.ray_process import ray_process
from tests.stack.training import train_batch, trainer_config

pytestmark = pytest.mark.timeout(300)

UPDATES = 4


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    with ray_process() as made:
        yield made


@pytest.fixture(scope="module")
def trained(
    process: ProcessPoolExecutor, tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Config, RunStore]:
    """A run of four updates with checkpoints after the second and the third, whose trainer is gone."""
    config = trainer_config(tiny_llama, trainer={"lr_scheduler_type": "cosine", "lr_decay_steps": UPDATES})
    store = RunStore(str(tmp_path_factory.mktemp("run")))
    process.submit(train, config, store).result()
    return config, store


def train(config: Config, store: RunStore) -> None:
    store.assign_run_id()
    for number in range(1, UPDATES + 1):
        batch = store.write_batch(number, "train", train_batch(rows=4, seed=number), TrainBatch)
        trainer = trainer_for_update(config, store, number)
        trainer.update(number, batch.sha256, store.read_batch(batch))
        store.record(ledger_entry(number, "update").model_copy(update={"inputs": {"batch": batch}}))
        if number in (2, 3):
            save_checkpoint(trainer, None, None, store, number)
    trainer.export_weights(str(store.directory / "uninterrupted.safetensors"))
    release(store.run_id)


@pytest.fixture
def run(trained: tuple[Config, RunStore], tmp_path: Path) -> tuple[Config, RunStore]:
    """A copy of it, under an id of its own, that a test may damage."""
    config, store = trained
    shutil.copytree(store.directory, tmp_path / "run")
    copy = RunStore(str(tmp_path / "run"))
    (copy.directory / "run-id").unlink()
    copy.assign_run_id()
    return config, copy


def restore(config: Config, store: RunStore) -> list[str]:
    """Bring a new trainer to the last version and write its weights; what was logged."""
    queue: SimpleQueue[logging.LogRecord] = SimpleQueue()
    records = QueueHandler(queue)
    logger = logging.getLogger("rlcore")
    logger.setLevel(logging.INFO)
    logger.addHandler(records)
    try:
        trainer_at(config, store, UPDATES).export_weights(str(store.directory / "restored.safetensors"))
    finally:
        logger.removeHandler(records)
        release(store.run_id)
    return [queue.get().getMessage() for _ in range(queue.qsize())]


def damage(store: RunStore, version: int) -> Path:
    """Flip a byte in the weights of a checkpoint."""
    folder = store.directory / "checkpoints" / f"{version:06d}" / "megatron"
    file = max(folder.rglob("*.distcp"), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    return file


def assert_uninterrupted(store: RunStore) -> None:
    """The restored weights are, bit for bit, those of the trainer to which nothing happened."""
    expected = load_file(store.directory / "uninterrupted.safetensors")
    restored = load_file(store.directory / "restored.safetensors")
    assert expected.keys() == restored.keys()
    assert all(torch.equal(expected[name], restored[name]) for name in expected)


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(
    process: ProcessPoolExecutor, run: tuple[Config, RunStore]
) -> None:
    config, store = run
    file = damage(store, 3)
    refused, restored, *replayed = process.submit(restore, config, store).result()
    assert refused.startswith("checkpoint 000003 is refused: ") and str(file) in refused
    assert restored == f"trainer restored from {store.directory / 'checkpoints' / '000002'}"
    assert replayed == ["trainer replays update 3", "trainer replays update 4"]
    assert_uninterrupted(store)


def test_where_no_checkpoint_is_good_the_error_says_how_to_start_from_the_beginning(
    process: ProcessPoolExecutor, run: tuple[Config, RunStore]
) -> None:
    config, store = run
    for version in (2, 3):
        damage(store, version)
    with pytest.raises(CheckpointDamaged, match=r"no checkpoint is good: .*000003.*000002.* delete the damaged"):
        process.submit(restore, config, store).result()
    for checkpoint in published(store.directory / "checkpoints"):
        shutil.rmtree(checkpoint)
    assert process.submit(restore, config, store).result() == [f"trainer replays update {n}" for n in (1, 2, 3, 4)]
    assert_uninterrupted(store)


def test_after_a_pruning_the_trainer_comes_back_from_what_is_left(
    process: ProcessPoolExecutor, run: tuple[Config, RunStore]
) -> None:
    config, store = run
    store.write_bytes("config.yaml", dump(config).encode())
    for number in range(1, UPDATES + 1):
        entry = store.find(number, "update")
        assert entry is not None
        store.record(ledger_entry(number, "advantage", entry.inputs["batch"]))
        store.append_line("metrics.jsonl", f'{{"iteration": {number}}}')
    prune(store, plan_pruning(store))
    assert [path.name for path in published(store.directory / "checkpoints")] == ["000003"]
    assert [path.parent.name for path in store.directory.glob("iterations/*/*")] == ["000004"]
    assert process.submit(restore, config, store).result() == [
        f"trainer restored from {store.directory / 'checkpoints' / '000003'}",
        "trainer replays update 4",
    ]
    assert_uninterrupted(store)


def test_a_fork_applies_none_of_the_updates_of_the_run_it_is_from(
    process: ProcessPoolExecutor, run: tuple[Config, RunStore]
) -> None:
    config, store = run
    fork = Fork(url="x", run_id="x", iteration=2, changed={}, ledger_lines=0, ledger_sha256="", forked_at=1.0)
    store.write_bytes(FORK_FILE, fork.model_dump_json().encode())
    logged = process.submit(restore, config, store).result()
    assert logged[-1] == "trainer replays update 4"
    damage(store, 3)
    damage(store, 2)
    with pytest.raises(StoreError, match="forked from iteration 2 of x, and has no good checkpoint of it"):
        process.submit(restore, config, store).result()
    shutil.rmtree(store.directory / "checkpoints")
    with pytest.raises(StoreError, match="forked from iteration 2 of x, and has no good checkpoint of it"):
        process.submit(restore, config, store).result()


def test_graders_are_those_of_the_settings_also_where_others_are_still_warm(
    process: ProcessPoolExecutor, run: tuple[Config, RunStore]
) -> None:
    _, store = run
    rewards, names = process.submit(grade_by_turns, store).result()
    assert rewards == [0.0, 1.0], "the second is of the graders that the first had left"
    assert names == 1


def grade_by_turns(store: RunStore) -> tuple[list[float], int]:
    """The reward of one response by two graders, one after the other; how many actors there are then."""
    truth = '{"rules": [{"kind": "lowercase"}]}'
    row = {
        "sample_id": "a",
        "domain": "arithmetic",
        "prompt_text": "?",
        "response_text": "lower",
        "ground_truth": truth,
    }
    try:
        found = []
        for grader in ("math", "format"):
            config = compose("arithmetic", [f"rewards.arithmetic.grader={grader}"])
            found += graders(config, store).grade(pl.DataFrame([row]))["reward"].to_list()
        return found, len(actor_names(store.run_id))
    finally:
        release(store.run_id)
