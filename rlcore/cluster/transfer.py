"""Weights from the trainer to the engine."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import ray

from rlcore.cluster.engine import EngineGroup
from rlcore.cluster.trainer import TrainerGroup
from rlcore.config import Config, model_directory
from rlcore.store import RunStore
from rlcore.sync_check import Transfer
from rlcore.trainer.checkpoint import sha256_of

SHARED_MEMORY = Path("/dev/shm")


def transfer_weights(
    config: Config, store: RunStore, trainer: TrainerGroup, engines: EngineGroup, policy_version: int
) -> Transfer:
    """Hand the trainer's weights to the engines through a file, whose digest is taken while they load it."""
    started = time.perf_counter()
    with exported_weights(config, store, trainer) as path, ThreadPoolExecutor(1) as beside:
        export_seconds = time.perf_counter() - started
        digest = beside.submit(sha256_of, path)
        load_seconds = engines.update_weights(str(path), policy_version)
        return Transfer(
            bytes=path.stat().st_size,
            weights_sha256=digest.result(),
            export_seconds=export_seconds,
            load_seconds=load_seconds,
        )


@contextmanager
def exported_weights(config: Config, store: RunStore, trainer: TrainerGroup) -> Iterator[Path]:
    """The trainer's weights in a safetensors file while the block lasts.

    It is in shared memory where there is one node and it fits, else in the run directory.
    """
    folder = _transfer_directory(config, store)
    folder.mkdir(exist_ok=True)
    try:
        path = folder / "weights.safetensors"
        trainer.export_weights(str(path))
        yield path
    finally:
        shutil.rmtree(folder)


def _transfer_directory(config: Config, store: RunStore) -> Path:
    """One name per run: what a killed process left there is overwritten by the next."""
    needed = 2 * sum(file.stat().st_size for file in model_directory(config.model).glob("*.safetensors"))
    one_node = sum(node["Alive"] for node in ray.nodes()) == 1
    shared = one_node and SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > needed
    return (SHARED_MEMORY if shared else store.directory) / f"rlvr-{store.run_id}"
