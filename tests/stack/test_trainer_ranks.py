"""The trainer's ranks as Ray actors, on a real Ray of two nodes, each at an address of its own."""

from __future__ import annotations

import multiprocessing
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest
import ray
import torch
from ray.util.placement_group import placement_group_table
from safetensors.torch import load_file

from rlcore.batches import TrainBatch
from rlcore.cluster import placement
from rlcore.cluster.policy import trainer_for_update
from rlcore.cluster.ranks import GRACE_SECONDS, RankFailed, World, world
from rlcore.cluster.residents import QUIET_THREADS, actor_names, namespace, release
from rlcore.cluster.trainer import TrainerGroup
from rlcore.cluster.waiting import Supervision, engine_time
from rlcore.config import Config
from rlcore.deadlines import Deadlines
from rlcore.reports import UpdateReport
from rlcore.store import BatchRef, LedgerEntry, RunStore
from rlcore.trainer.updates import UpdateRefused
from tests.stack.training import train_batch, trainer_config

pytestmark = pytest.mark.timeout(300)

NEAR, FAR = "127.0.0.2", "127.0.0.3"
"""Addresses of the node that the tests run on, which has no GPU, and of the one that says it has two."""
MEETING = ("torch.distributed", "TCPStore")
"""Where ranks meet. Itself as a rank: it is built when all have come."""


def start_node(log: Path, environment: dict[str, str], *options: str) -> subprocess.Popen[bytes]:
    """A node of Ray's, once it says that it runs."""
    command = [str(Path(sys.executable).parent / "ray"), "start", "--block", *options]
    with open(log, "wb") as output:
        node = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    deadline = time.monotonic() + 90
    while "Ray runtime started" not in (said := log.read_text()):
        assert node.poll() is None and time.monotonic() < deadline, said
        time.sleep(0.1)
    return node


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of the cluster, to which this process is connected."""
    logs = tmp_path_factory.mktemp("ray")
    with socket.socket() as listener:
        listener.bind((NEAR, 0))
        address = f"{NEAR}:{listener.getsockname()[1]}"
    nodes = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RUNS_OF_RANKS", str(logs / "runs"))
        # Set, it means that no other node may join.
        patch.delenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", raising=False)
        try:
            head = ["--head", f"--node-ip-address={NEAR}", f"--port={address.split(':')[1]}", "--num-cpus=0"]
            without_gpu = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
            # Ranks without GPUs go where there is more memory.
            head += ["--include-dashboard=false", f"--memory={2 << 30}"]
            nodes.append(start_node(logs / "near", without_gpu, *head))
            other = [
                f"--address={address}",
                f"--node-ip-address={FAR}",
                "--num-cpus=0",
                "--num-gpus=2",
                f"--memory={1 << 30}",
            ]
            nodes.append(start_node(logs / "far", dict(os.environ), *other))
            ray.init(address=address, _node_ip_address=NEAR, log_to_driver=False)
            yield address
        finally:
            ray.shutdown()
            for node in nodes:
                node.terminate()
            for node in nodes:
                node.wait(60)


def supervision(run_id: str) -> Supervision:
    """Of a run whose directory is in the environment, where also other processes find it."""
    return Supervision(Path(os.environ["RUNS_OF_RANKS"]) / run_id, Deadlines())


def meeting(run_id: str, size: int = 2, num_gpus: float = 0.0) -> World:
    """Ranks that only meet. With GPUs, on the node that has them."""

    def arguments(rank: int, address: str, port: int) -> tuple[Any, ...]:
        assert address == (FAR if num_gpus else NEAR)
        return address, port, size, rank == 0, timedelta(minutes=10)

    return world("meeting", run_id, size, num_gpus, QUIET_THREADS, MEETING, arguments, supervision(run_id))


def pids(ranks: World) -> list[int]:
    return [rank.place.pid for rank in ranks.ranks]


def await_ended(processes: list[int]) -> None:
    deadline = time.monotonic() + 10
    while there := [pid for pid in processes if psutil.pid_exists(pid)]:
        assert time.monotonic() < deadline, f"still there: {there}"
        time.sleep(0.05)


def rooms(run_id: str) -> list[dict[str, Any]]:
    """Ray's records of the placement groups that a run has."""
    every = placement_group_table().values()
    return [
        record
        for record in every
        if record["name"].startswith(f"{namespace(run_id)}/") and record["state"] != "REMOVED"
    ]


def kill_at_work(ranks: World, victim: int, call: Callable[[], Any]) -> tuple[Exception, float]:
    """Kill a rank while it works on the call; the call's error, and how many seconds after the kill it came."""
    actor, place = ranks.ranks[victim].actor, ranks.ranks[victim].place
    with ThreadPoolExecutor(1) as caller:
        called = caller.submit(call)
        # An actor does one thing at a time: while it does not answer, it works.
        while ray.wait([actor.is_built.remote("")], timeout=0.5)[0]:
            assert not called.done(), f"done before a rank could be killed: {called.result()}"
        os.kill(place.pid, signal.SIGKILL)
        killed = time.monotonic()
        error = called.exception(timeout=60)
    assert isinstance(error, Exception)
    return error, time.monotonic() - killed


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_dies_is_named_and_those_that_wait_for_it_are_ended(address: str, victim: int) -> None:
    run_id = f"rank-{victim}-dies"
    ranks = meeting(run_id)
    error, seconds = kill_at_work(ranks, victim, lambda: ranks.call("get", "a key that nobody sets"))
    assert isinstance(error, RankFailed) and seconds < 30
    place = ranks.ranks[victim].place
    named = f"meeting rank {victim} on node {NEAR} ({socket.gethostname()}), pid {place.pid} died in get: "
    assert str(error).startswith(named) and "Worker unexpectedly exits" in str(error)
    assert f"the end of {place.log}:" in str(error)
    # The first rank is the meeting place: without it the second fails too, without the second the first waits on.
    assert (f"{ranks.ranks[1]} raised DistNetworkError: " in str(error)) == (victim == 0)
    await_ended(pids(ranks))
    assert actor_names(run_id) == [] and rooms(run_id) == []

    again = meeting(run_id)
    assert not set(pids(again)) & set(pids(ranks))
    again.call("set", "key", "value")
    assert again.call("get", "key") == [b"value", b"value"]
    assert len(pids(meeting(run_id, size=1))) == len(actor_names(run_id)) == 1
    release(run_id)
    assert actor_names(run_id) == [] and rooms(run_id) == []


def test_an_error_of_all_ranks_arrives_as_it_was_raised_and_ends_none(address: str) -> None:
    ranks = meeting("fails")
    with engine_time() as seconds, pytest.raises(TypeError) as raised:
        ranks.call("get", 1)
    assert raised.value.__notes__[0] in [f"raised in get by {rank}" for rank in ranks.ranks]
    assert len(seconds) == 1 and 0 < seconds[0] < GRACE_SECONDS
    assert pids(meeting("fails")) == pids(ranks)
    release("fails")


def test_ranks_that_do_not_fail_alike_are_ended(address: str) -> None:
    contents = [{"key": 1}, {}]
    kind, watching = ("builtins", "dict"), supervision("unlike")
    ranks = world("dict", "unlike", 2, 0.0, QUIET_THREADS, kind, lambda rank, *_: (contents[rank],), watching)
    with pytest.raises(KeyError, match="'key'") as raised:
        ranks.call("__getitem__", "key")
    assert raised.value.__notes__ == [f"raised in __getitem__ by {ranks.ranks[1]}"]
    await_ended(pids(ranks))
    assert actor_names("unlike") == [] and rooms("unlike") == []


def _die_while_building(address: str) -> None:
    ray.init(address=address, _node_ip_address=NEAR, log_to_driver=False)

    def arguments(rank: int, address: str, port: int) -> tuple[Any, ...]:
        if rank == 1:
            os._exit(3)
        return address, port, 2, True, timedelta(minutes=10)

    world("meeting", "orphans", 2, 0.0, QUIET_THREADS, MEETING, arguments, supervision("orphans"))


def test_ranks_that_a_dead_caller_left_unbuilt_are_made_anew(address: str) -> None:
    caller = multiprocessing.get_context("spawn").Process(target=_die_while_building, args=(address,))
    caller.start()
    caller.join(120)
    assert caller.exitcode == 3
    assert sorted(actor_names("orphans")) == ["meeting-0", "meeting-1"]
    [room] = rooms("orphans")
    ranks = meeting("orphans")
    ranks.call("set", "key", "value")
    assert [there["placement_group_id"] for there in rooms("orphans")] != [room["placement_group_id"]]
    release("orphans")


def test_ranks_meet_at_the_node_of_the_first(address: str) -> None:
    ranks = meeting("far", num_gpus=1.0)
    assert {rank.place.address for rank in ranks.ranks} == {FAR} != {ray.util.get_node_ip_address()}
    error, _ = kill_at_work(ranks, 1, lambda: ranks.call("get", "a key that nobody sets"))
    place = ranks.ranks[1].place
    assert str(error).startswith(f"meeting rank 1 on node {FAR} ") and f"the end of {place.log}:" in str(error)
    release("far")


def test_too_few_gpus_are_an_error_with_what_there_is(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "ROOM_SECONDS", 1)
    with pytest.raises(placement.NoRoom, match=r"meeting needs 3 × \{'GPU': 1.0\}, and after 1 s .*'GPU': 2\.0"):
        meeting("many", size=3, num_gpus=1.0)
    assert rooms("many") == []


def recorded(store: RunStore, iteration: int, batch: pl.DataFrame) -> BatchRef:
    return store.write_batch(iteration, "train_batch", batch, TrainBatch)


def record_update(store: RunStore, batch: BatchRef, report: UpdateReport) -> None:
    store.record(
        LedgerEntry(
            iteration=report.iteration,
            stage="update",
            identity=f"update {report.iteration}",
            inputs={"batch": batch},
            output=store.write_report(report.iteration, "update", report),
            policy_version=report.iteration,
            started_at=0.0,
            finished_at=1.0,
            seconds=1.0,
            engine_seconds=1.0,
        )
    )


def exported(trainer: TrainerGroup, path: Path) -> dict[str, torch.Tensor]:
    trainer.export_weights(str(path))
    return load_file(path)


def test_a_rank_killed_in_an_update_ends_it_and_the_next_attempt_applies_it(
    address: str, tiny_llama: Path, tmp_path: Path
) -> None:
    config: Config = trainer_config(tiny_llama, trainer={"world_size": 2})
    store = RunStore(str(tmp_path / "run"))
    store.assign_run_id()
    first, second = recorded(store, 1, train_batch(seed=1)), recorded(store, 2, train_batch(rows=1000, seed=2))

    trainer = trainer_for_update(config, store, 1)
    assert (trainer.policy_version(), len(pids(trainer.world))) == (0, 2)
    [room] = rooms(store.run_id)
    assert len(room["bundles"]) == 2
    for rank in trainer.world.ranks:
        belongs = ray.get(rank.actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_placement_group_id()))
        assert belongs == room["placement_group_id"]
    record_update(store, first, trainer.update(1, first.sha256, store.read_batch(first)))
    again = trainer_for_update(config, store, 2)
    assert pids(again.world) == pids(trainer.world) and again.policy_version() == 1
    before = exported(again, tmp_path / "before")
    with pytest.raises(UpdateRefused, match="update 4 is out of order"):
        again.update(4, "digest", store.read_batch(first))

    rows = store.read_batch(second)
    error, seconds = kill_at_work(again.world, 1, lambda: again.update(2, second.sha256, rows))
    assert isinstance(error, RankFailed) and seconds < 30
    assert re.match(rf"trainer rank 1 on node {NEAR} \(.+\), pid {pids(again.world)[1]} died in update: ", str(error))
    await_ended(pids(again.world))

    anew = trainer_for_update(config, store, 2)
    assert not set(pids(anew.world)) & set(pids(again.world))
    [new_room] = rooms(store.run_id)
    assert new_room["placement_group_id"] != room["placement_group_id"]
    assert anew.policy_version() == 1
    after = exported(anew, tmp_path / "after")
    assert all(torch.equal(before[name], after[name]) for name in before)
    report = anew.update(2, second.sha256, rows)
    assert (report.policy_version, report.optimizer_steps, anew.policy_version()) == (2, 1, 2)
    release(store.run_id)
