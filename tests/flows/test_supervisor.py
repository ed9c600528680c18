"""The supervisor starts again what died, with pauses that grow, and gives up what dies too often."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flows import processes, services, supervisor, watch
from flows.processes import MARK, ServiceDied, ServiceError, end, start_process
from flows.services import RAY, SERVER, WORKER, Services
from flows.supervisor import RESTARTS, WINDOW_SECONDS, Budget, Supervisor
from flows.watch import watched
from tests.disks import fill, small_disk

SLEEP = [sys.executable, "-c", "import time; print('at work', flush=True); time.sleep(60)"]


def test_the_first_restart_is_at_once_and_the_pauses_grow() -> None:
    budget, pauses = Budget(), []
    for second in range(RESTARTS):
        pauses.append(budget.pause(float(second)))
        budget.spend(float(second))
    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0]
    assert budget.pause(100.0) is None


def test_restarts_that_are_long_ago_do_not_count() -> None:
    budget = Budget()
    for _ in range(RESTARTS):
        budget.spend(0.0)
    assert budget.pause(WINDOW_SECONDS) is None
    assert budget.pause(WINDOW_SECONDS + 1) == 0.0


@pytest.fixture
def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Services]:
    """A record of three services that are plain processes, which also stand in for those that are started anew."""
    monkeypatch.setenv("RLVR_CACHE", str(tmp_path))
    running = Services(prefect_port=1, ray_port=2, ray_token="t", home=str(tmp_path))

    def start(running: Services, name: str, *_: object, **__: object) -> None:
        running.keep(start_process(name, SLEEP, {}, Path(running.home) / f"{name}.log"))

    monkeypatch.setattr(services, "_start", start)
    for wait in ("refuse_taken_port", "await_server", "await_ray"):
        monkeypatch.setattr(services, wait, lambda *_: None)
    for name in (SERVER, RAY, WORKER):
        start(running, name)
    with services.changing_record():
        services.write_record(running)
    yield running
    services.stop_recorded()


def recorded_pid(name: str) -> int:
    running = services.read_record()
    service = running.named(name) if running else None
    assert service is not None
    return service.pid


def kill(name: str) -> int:
    pid = recorded_pid(name)
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while (psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.01)
    return pid


@pytest.mark.parametrize("name", [SERVER, RAY, WORKER])
def test_a_killed_service_is_started_again_and_the_others_are_left_alone(up: Services, name: str) -> None:
    before = {service.name: service.pid for service in up.processes}
    kill(name)
    Supervisor().look()
    running = services.recorded()
    assert running is not None and [service.name for service in running.processes] == [SERVER, RAY, WORKER]
    assert {service.name for service in running.processes if service.pid != before[service.name]} == {name}


def test_what_a_dead_service_left_is_ended_before_it_is_started_again(up: Services, tmp_path: Path) -> None:
    head = up.named(RAY)
    assert head is not None
    left = subprocess.Popen(SLEEP, env={**os.environ, MARK: head.mark}, start_new_session=True)
    kill(RAY)
    Supervisor().look()
    assert not psutil.pid_exists(left.pid)


def test_what_a_dead_service_left_is_found_by_its_session_where_its_environment_is_overwritten(tmp_path: Path) -> None:
    code = f"import subprocess, time; subprocess.Popen({SLEEP!r}, env={{}}); time.sleep(60)"
    service = start_process("parent", [sys.executable, "-c", code], {}, tmp_path / "parent.log")
    deadline = time.monotonic() + 60
    while len(processes.members(service)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(service.pid, signal.SIGKILL)
    (left,) = [process for process in processes.members(service) if process.pid != service.pid]
    assert not end(service) and not left.is_running()


def test_the_flow_runs_of_a_dead_worker_go_on(up: Services) -> None:
    worker = up.named(WORKER)
    assert worker is not None
    flow_run = subprocess.Popen(SLEEP, env={**os.environ, MARK: worker.mark}, start_new_session=True)
    kill(WORKER)
    Supervisor().look()
    assert flow_run.poll() is None
    assert services.stop_recorded() == [WORKER, RAY, SERVER]
    assert not psutil.pid_exists(flow_run.pid), "`rlvr down` left a flow run"


def test_ending_the_supervisor_leaves_what_it_started_to_be_ended_in_order(up: Services, tmp_path: Path) -> None:
    """A service that the supervisor started is its child."""
    start = f"""
import sys, time
from pathlib import Path
from flows.processes import start_process
print(start_process("child", {SLEEP!r}, {{}}, Path({str(tmp_path)!r}) / "child.log").model_dump_json(), flush=True)
time.sleep(60)
"""
    log = tmp_path / "parent.log"
    parent = start_process("parent", [sys.executable, "-c", start], {}, log)
    deadline = time.monotonic() + 20
    while not log.read_text().endswith("\n") and time.monotonic() < deadline:
        time.sleep(0.05)
    child = processes.Service.model_validate_json(log.read_text())
    assert end(parent) and child.process() is not None
    assert end(child) and child.process() is None


def test_a_service_that_dies_too_often_is_given_up_with_its_last_lines(
    up: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LONGEST_PAUSE_SECONDS", 0.0)
    looks = Supervisor()
    for _ in range(RESTARTS + 1):
        last = kill(WORKER)
        looks.look()
    running = services.read_record()
    assert running is not None and recorded_pid(WORKER) == last
    story = running.given_up[WORKER]
    assert story.startswith("died 6 times, the last 6 of them within 10 minutes, and is not started again")
    looks.look()
    assert recorded_pid(WORKER) == last, "it was started again all the same"
    assert services.recorded() is None


def test_a_service_that_does_not_come_up_is_tried_again(up: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "LONGEST_PAUSE_SECONDS", 0.0)

    def fail(*_: object) -> None:
        raise ServiceError("the server was not ready")

    looks = Supervisor()
    kill(SERVER)
    with monkeypatch.context() as broken:
        broken.setattr(services, "await_server", fail)
        looks.look()
    assert services.recorded() is None
    looks.look()
    assert services.recorded() is not None


def never(died: ServiceDied) -> None:
    raise AssertionError("abandoned") from died


def test_a_training_that_no_interrupt_ends_is_abandoned_with_its_services_stopped(
    up: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "INTERRUPT_SECONDS", 0.2)
    abandoned: list[str] = []

    def abandon(died: ServiceDied) -> None:
        abandoned.append(str(died))

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(ServiceDied), watched(up.processes, abandon):
            kill(SERVER)
            deadline = time.monotonic() + 20
            while not abandoned and time.monotonic() < deadline:
                time.sleep(0.1)
            raise KeyboardInterrupt
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(up.dead()) == len(up.processes)
    assert len(abandoned) == 1 and abandoned[0].startswith("prefect-server died")


def test_a_killed_service_interrupts_the_training_that_owns_it(up: Services) -> None:
    started = time.monotonic()
    said = r"(?s)ray-head died during the training.*goes on.*the end of .*at work"
    with pytest.raises(ServiceDied, match=said), watched(up.processes, never):
        time.sleep(0.5)
        kill(RAY)
        time.sleep(30)
    assert time.monotonic() - started < 10


def test_an_error_of_a_training_whose_services_live_is_its_own(up: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "NOTICE_SECONDS", 0.1)
    with pytest.raises(ValueError, match="its own"), watched(up.processes, never):
        raise ValueError("its own")


def test_the_record_is_only_for_its_owner_and_is_replaced_as_a_whole(up: Services) -> None:
    assert services.record_path().stat().st_mode & 0o777 == 0o600
    assert not [path for path in services.record_path().parent.iterdir() if path.suffix == ".new"]


def test_on_a_full_disk_nothing_is_started_that_could_not_be_recorded(
    up: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = services.record_path()
    disk = tmp_path / "disk"
    disk.mkdir()
    with small_disk(disk, kibibytes=64):
        monkeypatch.setattr(services, "record_path", lambda: disk / "up.json")
        (disk / "up.json").write_bytes(record.read_bytes())
        killed = kill(SERVER)
        filler = fill(disk)
        with pytest.raises(OSError, match="No space left"):
            Supervisor().look()
        assert recorded_pid(SERVER) == killed
        filler.unlink()
        Supervisor().look()
        assert services.recorded() is not None and recorded_pid(SERVER) != killed
        services.stop_recorded()
