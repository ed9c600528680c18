"""A process with a Ray of its own, for tests of what asks Ray."""

from __future__ import annotations

import multiprocessing
import secrets
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

import pytest
import ray


@contextmanager
def ray_process() -> Iterator[ProcessPoolExecutor]:
    """Ray reads its token when it is imported, so the token is set before the process starts."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_AUTH_MODE", "token")
        environment.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), initializer=start_ray) as process:
            yield process
            process.submit(ray.shutdown).result()


def start_ray() -> None:
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
