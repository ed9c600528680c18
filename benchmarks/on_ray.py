"""A process that uses a Ray of its own."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import ray

from flows import services
from rlcore.cluster.leaving import uncollected


@contextmanager
def ray_process(scratch: Path) -> Iterator[ProcessPoolExecutor]:
    """It imports Ray when the variables are set by which that finds its token."""
    spawn = multiprocessing.get_context("spawn")
    with (
        services.ray_available(scratch),
        ProcessPoolExecutor(1, mp_context=spawn, initializer=_enter) as process,
    ):
        yield process
        process.submit(_leave).result()


def _enter() -> None:
    ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False, logging_level="ERROR")


def _leave() -> None:
    with uncollected():
        ray.shutdown()
