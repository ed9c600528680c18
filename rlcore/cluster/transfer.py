"""Weights from the trainer to the engine."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import ray

from rlcore.cluster.engine import EngineHandle
from rlcore.cluster.trainer import TrainerGroup
from rlcore.config import Config, model_directory
from rlcore.store import RunStore
from rlcore.sync_check import Transfer

SHARED_MEMORY = Path("/dev/shm")


def transfer_weights(
    config: Config, store: RunStore, trainer: TrainerGroup, engine: EngineHandle, policy_version: int
) -> Transfer:
    """Hand the trainer's weights to the engine through a file; in shared memory where there is one node and it fits."""
    folder = _transfer_directory(config, store)
    folder.mkdir(exist_ok=True)
    path = str(folder / "weights.safetensors")
    try:
        started = time.perf_counter()
        size = trainer.export_weights(path)
        exported = time.perf_counter()
        load_seconds = engine.update_weights(path, policy_version)
    finally:
        shutil.rmtree(folder)
    return Transfer(bytes=size, export_seconds=exported - started, load_seconds=load_seconds)


def _transfer_directory(config: Config, store: RunStore) -> Path:
    """One name per run: what a killed process left there is overwritten by the next."""
    needed = 2 * sum(file.stat().st_size for file in model_directory(config.model).glob("*.safetensors"))
    one_node = sum(node["Alive"] for node in ray.nodes()) == 1
    shared = one_node and SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > needed
    return (SHARED_MEMORY if shared else store.directory) / f"rlvr-{store.run_id}"
