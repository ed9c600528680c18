"""`rlvr replay`, as a user runs it: the recorded batches give the recorded weights, bit for bit. On Ray."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import secrets
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import ray

from rlcore.batches import TrainBatch
from rlcore.cluster.checkpoints import save_checkpoint
from rlcore.cluster.policy import trainer_for_update
from rlcore.cluster.residents import release
from rlcore.cluster.transfer import BUCKET_BYTES
from rlcore.compose import dump
from rlcore.config import Config
from rlcore.reports import SyncReport
from rlcore.store import RunStore
from rlcore.weights.bucket import weights_sha256
from tests.entries import ledger_entry
from tests.stack.training import train_batch, trainer_config

pytestmark = pytest.mark.timeout(300)

REPOSITORY = Path(__file__).parents[2]
UPDATES = 3


@pytest.fixture(scope="module")
def trained(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """A run of three updates in float32 with one thread, with checkpoints after the first and the last."""
    config = trainer_config(tiny_llama)
    store = RunStore(str(tmp_path_factory.mktemp("run")))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_AUTH_MODE", "token")
        environment.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        # Ray reads its token when it is imported.
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            process.submit(train, config, store).result()
    return store


def train(config: Config, store: RunStore) -> None:
    """What the stages update, sync and checkpoint leave of each iteration."""
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    store.write_bytes("config.yaml", dump(config).encode())
    store.assign_run_id()
    for number in range(1, UPDATES + 1):
        batch = store.write_batch(number, "train", train_batch(rows=4, seed=number), TrainBatch)
        trainer = trainer_for_update(config, store, number)
        report = trainer.update(number, batch.sha256, store.read_batch(batch))
        updated = ledger_entry(number, "update", store.write_report(number, "update", report))
        store.record(updated.model_copy(update={"inputs": {"batch": batch}}))
        buckets = list(trainer.buckets(BUCKET_BYTES))
        synced = SyncReport(
            policy_version=number,
            weights_sha256=weights_sha256(tensor for bucket in buckets for tensor in bucket.tensors),
            bytes=sum(bucket.bytes for bucket in buckets),
            seconds=0.0,
            probe_tokens=1,
            probe_gap_mean=0.0,
            probe_gap_max=0.0,
        )
        store.record(ledger_entry(number, "sync", store.write_report(number, "sync", synced)))
        if number in (1, UPDATES):
            save_checkpoint(trainer, None, None, store, number)
    release(store.run_id)
    ray.shutdown()


def replay(run: Path, cache: Path) -> tuple[int, list[str]]:
    """Exit status and lines of the command, with a Ray of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [sys.executable, "-c", "from flows.cli import main; main()"]
    command += ["replay", str(run), "--from", "2", "--to", str(UPDATES)]
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env={**environment, "RLVR_CACHE": str(cache)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout.splitlines()


def files_of(directory: Path) -> dict[Path, str]:
    """What is in a directory: every entry, the sha256 of every file."""
    return {
        path: hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "directory"
        for path in directory.rglob("*")
    }


def test_the_recorded_updates_come_out_the_same_and_the_run_stays_as_it_is(trained: RunStore, tmp_path: Path) -> None:
    before = files_of(trained.directory)
    status, (introduction, second, third, summary) = replay(trained.directory, tmp_path)
    assert status == 0
    assert introduction.startswith("from checkpoints/000001; compared bit for bit")
    assert second.startswith("update 2: same: weights ") and third.startswith("update 3: same: weights ")
    assert summary == "replayed: 2 updates with float32 and 1 thread a rank, nothing different"
    assert files_of(trained.directory) == before


def test_under_another_configuration_they_differ_and_it_says_by_how_much(trained: RunStore, tmp_path: Path) -> None:
    run = shutil.copytree(trained.directory, tmp_path / "run")
    config = run / "config.yaml"
    settings = config.read_text()
    config.write_text(settings.replace("learning_rate: 0.001", "learning_rate: 0.002"))
    assert config.read_text() != settings
    status, (_, second, third, summary) = replay(run, tmp_path)
    assert status == 1
    assert second.startswith("update 2: differs: weights ") and "learning_rate 0.001 by +1.0e-03" in second
    # There is a checkpoint of the third.
    assert "of the largest weight, in " in third and "against checkpoints/000003" in third
    assert summary == "replayed: 2 updates with float32 and 1 thread a rank, 2 different"
