"""Waiting for actors ends: with what they return, or when they stand still. On a Ray of its own."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray.exceptions import RayError

from rlcore.cluster.node import NodeGone
from rlcore.cluster.residents import QUIET_THREADS, Resident, actor_names, get_or_create
from rlcore.cluster.waiting import Call, Supervision, engine_time, results_of
from rlcore.compose import compose
from rlcore.deadlines import DeadlineExceeded, Deadlines, StageStalled
from rlcore.iteration import Iteration
from rlcore.progress import WRITE_SECONDS, counting
from rlcore.store import RunStore
from tasks import hangs
from tests.ray_process import ray_process, start_ray

RUN_ID = "waiting"
STALL_SECONDS = 1.5


class Worker:
    """Works as it is told."""

    def count(self, seconds: float) -> int:
        """Move for that long."""
        end = time.monotonic() + seconds
        number = 0
        with counting("moves") as done:
            while time.monotonic() < end:
                number += 1
                done(number)
                time.sleep(0.05)
        return number

    def stand_still(self, seconds: float) -> str:
        with counting("moves", 3) as done:
            time.sleep(WRITE_SECONDS)
            done(2)
            time.sleep(seconds)
        return "moved again"

    def fail(self) -> None:
        raise KeyError("this one")


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    with ray_process() as made:
        yield made


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the run that the worker belongs to."""
    return tmp_path_factory.mktemp("run")


def call(directory: Path, stage_seconds: float, method: str, *arguments: Any) -> tuple[Any, float]:
    """The result of a worker's method, and the engine time it took."""
    worker = get_or_create(Resident, "worker", RUN_ID, directory, (__name__, "Worker"), QUIET_THREADS, identity="0")
    supervision = Supervision(directory, Deadlines(stage_seconds=stage_seconds))
    # It starts without its time being counted.
    results_of([Call("worker", worker, worker.call.remote("count", 0))], "start", supervision, 60.0)
    calls = [Call("worker", worker, worker.call.remote(method, *arguments))]
    with engine_time() as seconds:
        result = results_of(calls, f"{method} by worker", supervision, STALL_SECONDS)[0]
    return result, sum(seconds)


def there() -> list[str]:
    return actor_names(RUN_ID)


def test_what_moves_is_waited_for_and_the_time_is_engine_time(process: ProcessPoolExecutor, directory: Path) -> None:
    moves, seconds = process.submit(call, directory, 60.0, "count", 2 * STALL_SECONDS).result()
    assert moves > 1 and seconds >= 2 * STALL_SECONDS


def test_an_error_comes_as_it_was_raised_and_ends_nobody(process: ProcessPoolExecutor, directory: Path) -> None:
    with pytest.raises(KeyError, match="this one"):
        process.submit(call, directory, 60.0, "fail").result()
    assert process.submit(there).result() == ["worker-0"]


@pytest.mark.parametrize(
    ("method", "seconds", "stage_seconds", "raised"),
    [
        ("stand_still", 60.0, 60.0, r"stands still: no progress in 1\.5 s; .*at stand_still, 2/3 moves"),
        ("count", 60.0, 3.0, r"takes too long; .*at count, \d+ moves"),
    ],
)
def test_what_stands_still_or_takes_too_long_is_ended_with_its_stacks_kept(
    process: ProcessPoolExecutor, directory: Path, method: str, seconds: float, stage_seconds: float, raised: str
) -> None:
    kind = StageStalled if method == "stand_still" else DeadlineExceeded
    with pytest.raises(kind, match=f"{method} by worker {raised}") as error:
        process.submit(call, directory, stage_seconds, method, seconds).result()
    file = max(directory.glob("stacks/*-worker.txt"))
    assert str(file) in str(error.value)
    assert f"{method} (" in file.read_text() and "test_waiting.py" in file.read_text()
    assert process.submit(there).result() == []
    assert process.submit(call, directory, 60.0, "count", 0.1).result()[0] >= 1


def stage_of(iteration: Iteration, stops: bool) -> None:
    with hangs.watched(iteration, "sample"):
        if stops:
            os.kill(os.getpid(), signal.SIGSTOP)


def run_stages(iteration: Iteration) -> None:
    """One that ends, so that a process is there; then one that does not."""
    hangs.SLACK_SECONDS = 1.0
    stage = ray.remote(stage_of).options(num_cpus=0, max_retries=0)
    ray.get(stage.remote(iteration, False))
    asyncio.run(hangs.moving(iteration, stage.remote(iteration, True)))


def test_a_stage_whose_own_process_stands_still_is_ended_by_the_flow(
    process: ProcessPoolExecutor, tmp_path: Path
) -> None:
    config = compose("arithmetic", ["deadlines.silent_seconds=5"])
    iteration = Iteration(config, RunStore(str(tmp_path)), 3)
    with pytest.raises(StageStalled, match=r"no progress in 6 s; stage-sample \(process \d+ on .*, at iteration 3\)"):
        process.submit(run_stages, iteration).result()
    [file] = tmp_path.glob("stacks/*-stage-sample.txt")
    assert "stage_of (" in file.read_text()


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def wait_while_the_raylet_is_killed(iteration: Iteration) -> None:
    """As if the head had died, and another one come up in its place."""
    result = ray.remote(sleep).options(num_cpus=0, max_retries=0).remote(60.0)
    socket_name = ray._private.worker._global_node.raylet_socket_name
    [raylet] = [
        each
        for each in psutil.process_iter(["cmdline"])
        if f"--raylet_socket_name={socket_name}" in (each.info["cmdline"] or ())
    ]

    async def wait() -> None:
        waiting = asyncio.create_task(hangs.moving(iteration, result))
        await asyncio.sleep(2.5 * hangs.LOOK_SECONDS)
        assert not waiting.done()
        raylet.kill()
        started = time.monotonic()
        with pytest.raises((NodeGone, RayError)):
            await waiting
        assert time.monotonic() - started < 10.0

    asyncio.run(wait())
    os._exit(0)


def test_a_flow_whose_ray_node_is_gone_does_not_wait_for_its_stages(tmp_path: Path) -> None:
    iteration = Iteration(compose("arithmetic", []), RunStore(str(tmp_path)), 3)
    process = multiprocessing.get_context("spawn").Process(target=in_a_cluster_of_its_own, args=(iteration,))
    process.start()
    process.join(90)
    assert process.exitcode == 0


def in_a_cluster_of_its_own(iteration: Iteration) -> None:
    start_ray()
    wait_while_the_raylet_is_killed(iteration)
