"""Processes around a training: ports, records, and that only our own are ended."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows import processes, services
from flows.processes import Service, ServiceError, ServiceHangs, await_ready, start_process
from flows.services import RAY, SERVER, WORKER, Services
from rlcore import machine


def test_a_port_in_use_is_named_with_its_owner_and_the_way_out() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(ServiceError, match=rf"port {port}, meant for the Ray head, is in use.*--ray-port"):
            processes.refuse_taken_port(port, "the Ray head")


def test_a_free_port_is_not_refused() -> None:
    processes.refuse_taken_port(machine.free_port(), "the Ray head")


def started(code: str) -> tuple[subprocess.Popen[bytes], Service]:
    process = subprocess.Popen([sys.executable, "-c", code])
    created = machine.started(process.pid)
    return process, Service(name="test", pid=process.pid, created=created, log="")


def recording(*processes: Service) -> Services:
    return Services(prefect_port=1, ray_port=2, ray_token="t", home="", processes=list(processes))


def test_stop_ends_a_service_with_its_children() -> None:
    child = "[sys.executable, '-c', 'import time; time.sleep(60)']"
    spawn = f"import subprocess, sys, time; subprocess.Popen({child}); time.sleep(60)"
    process, service = started(spawn)
    deadline = time.monotonic() + 10
    while not (children := psutil.Process(process.pid).children()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert services.stop(recording(service)) == ["test"]
    process.wait(5)
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)


def test_stop_leaves_a_process_alone_that_only_has_the_number_of_one_of_ours() -> None:
    process, service = started("import time; time.sleep(60)")
    try:
        assert services.stop(recording(service.model_copy(update={"created": service.created - 100}))) == []
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_stop_goes_on_when_a_process_ends_before_it_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    child = "[sys.executable, '-c', 'import time; time.sleep(60)']"
    process, service = started(f"import subprocess, sys, time; subprocess.Popen({child}); time.sleep(60)")
    other, other_service = started("import time; time.sleep(60)")

    wait = psutil.wait_procs

    def wait_and_end_what_is_left(
        processes: list[psutil.Process], timeout: float
    ) -> tuple[list[psutil.Process], list[psutil.Process]]:
        for left in processes:
            if left.is_running():
                subprocess.run(["kill", "-9", str(left.pid)], check=False)
        process.wait()
        wait(processes, timeout=10)
        return [], processes

    with monkeypatch.context() as patched:
        patched.setattr(processes.psutil, "wait_procs", wait_and_end_what_is_left)
        assert services.stop(recording(service)) == ["test"]
    assert services.stop(recording(other_service)) == ["test"]
    assert other.poll() is not None


def test_what_died_is_not_taken_for_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLVR_CACHE", str(tmp_path))
    process, service = started("pass")
    process.wait()
    services.record_path().parent.mkdir(parents=True)
    services.record_path().write_text(recording(service).model_dump_json())
    assert services.recorded() is None
    assert services.stop_recorded() == []
    assert not services.record_path().exists()


def test_a_service_that_dies_while_starting_is_reported_with_its_last_lines(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('cannot go on'); raise SystemExit(3)"]
    service = start_process("test", command, {}, tmp_path / "test.log", end_with_parent=True)
    with pytest.raises(ServiceError, match=r"(?s)test ended while starting.*cannot go on"):
        await_ready(service, lambda: False)


@pytest.mark.parametrize("seconds", [-86400.0, 86400.0])
def test_a_service_is_found_alive_and_ended_whatever_the_clock_was_set_to(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    process, service = started("import time; time.sleep(60)")
    boot = psutil._pslinux.boot_time
    monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: boot() + seconds)
    assert service.process() is not None
    assert services.stop(recording(service)) == ["test"]
    process.wait(timeout=5)


@pytest.mark.parametrize("hangs", [1, 2])
def test_a_server_that_hangs_while_it_is_told_of_the_flows_is_started_again_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hangs: int
) -> None:
    """As Prefect's does now and then on SQLite. The processes that stand for the services sleep."""
    monkeypatch.setattr(services, "DEPLOY_SECONDS", 0.5)
    monkeypatch.setattr(services, "await_server", lambda _: None)
    monkeypatch.setattr(services, "await_ray", lambda _: None)
    up = services.Services(prefect_port=1, ray_port=2, ray_token="", home=str(tmp_path))

    def start(name: str) -> Callable[[Services], None]:
        return lambda up: up.keep(start_process(name, ["sleep", "60"], {}, tmp_path / f"{name}.log"))

    for function, name in {"start_server": SERVER, "start_ray": RAY, "start_worker": WORKER}.items():
        monkeypatch.setattr(services, function, start(name))
    told: list[str] = []
    run = subprocess.run

    def tell(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        told.append(command[-1])
        answers = command[-1] != "flows.automations" or told.count("flows.automations") > hangs
        return run(["sleep", "0" if answers else "60"], **options)

    monkeypatch.setattr(subprocess, "run", tell)
    try:
        if hangs == 1:
            services.revive(up)
            assert [service.name for service in up.processes] == [SERVER, RAY, WORKER]
        else:
            with pytest.raises(ServiceHangs, match=r"flows\.automations` was not done after 0 s"):
                services.revive(up)
        assert told.count("flows.automations") == 2
    finally:
        services.stop(up)
