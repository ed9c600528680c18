"""The services that a training needs around it: Prefect server, Ray head, Prefect worker.

`rlvr up` starts them for good, records them, and leaves a supervisor that starts again what dies; `rlvr train` without
`rlvr up` starts its own for as long as it runs. All are told to listen on loopback; Ray binds every interface all the
same, so it asks for a token. Only processes started here are ever ended, by pid.
Importable without Prefect and Ray: it sets the environment that both read when they are imported.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel

from flows.processes import (
    STOP_SECONDS,
    Service,
    ServiceDied,
    ServiceError,
    ServiceHangs,
    await_ready,
    dead_of,
    end,
    refuse_taken_port,
    start_process,
)
from flows.watch import watched
from rlcore.machine import HOST, free_port
from rlcore.pretrained import cache_directory

POOL = "rlvr"
SERVER, RAY, WORKER, SUPERVISOR = "prefect-server", "ray-head", "prefect-worker", "supervisor"
STAGE_WORKERS = 4
"""Processes for stages that stay when they have nothing to do. So many stages of an iteration run together at most."""
HEARTBEAT_SECONDS = 30
"""Between two signs of life of a flow run; Prefect takes no fewer."""
DEPLOY_SECONDS = 60.0
"""For each of the commands that tell the server about the flows: they take a few."""
RAY_STOP_SECONDS = 3.0
"""With actors in it Ray takes a quarter of a minute to end. What they hold may be lost at any moment anyway."""


class Services(BaseModel):
    """What is running, and how to reach it."""

    prefect_port: int
    ray_port: int
    ray_token: str
    home: str
    processes: list[Service] = []
    """In the order in which they are started."""
    given_up: dict[str, str] = {}
    """Services that died too often to be started again, each with what happened."""

    @property
    def ui_url(self) -> str:
        return f"http://{HOST}:{self.prefect_port}"

    @property
    def api_url(self) -> str:
        return f"{self.ui_url}/api"

    def environment(self) -> dict[str, str]:
        """What a process must have in its environment to use these services."""
        return {
            "PREFECT_API_URL": self.api_url,
            "PREFECT_HOME": f"{self.home}/prefect",
            # Plain http on loopback: no certificate store to load for every client of every task.
            "PREFECT_API_TLS_INSECURE_SKIP_VERIFY": "true",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_LOGGING_EXTRA_LOGGERS": "rlcore,tasks,flows",
            "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_SECONDS),
            "DO_NOT_TRACK": "1",
            "RAY_ADDRESS": f"{HOST}:{self.ray_port}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.ray_token,
            "RAY_USAGE_STATS_ENABLED": "0",
            # Ray's name for "this machine only": else it takes 127.0.0.1 for the address that other machines reach.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        }

    def named(self, name: str) -> Service | None:
        return next((service for service in self.processes if service.name == name), None)

    def keep(self, service: Service) -> None:
        """Record a service, in place of one of the same name."""
        names = [known.name for known in self.processes]
        place = names.index(service.name) if service.name in names else len(names)
        self.processes[place : place + 1] = [service]

    def dead(self) -> list[Service]:
        return dead_of(self.processes)


def record_path() -> Path:
    return cache_directory() / "services" / "up.json"


def recorded() -> Services | None:
    """The services of `rlvr up`, if all of them are alive."""
    services = read_record()
    return services if services and services.processes and not services.dead() else None


def read_record() -> Services | None:
    path = record_path()
    return Services.model_validate_json(path.read_text()) if path.is_file() else None


def write_record(services: Services) -> None:
    """Replace the record as a whole. Only under `changing_record`."""
    path = record_path()
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    new.touch(mode=0o600)  # the token is not for others
    new.write_text(services.model_dump_json(indent=2))
    new.replace(path)


@contextmanager
def changing_record() -> Iterator[None]:
    """One process at a time starts and ends services: `rlvr up`, `rlvr down`, or the supervisor."""
    lock = record_path().with_suffix(".lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def use(services: Services) -> None:
    """Make this process, and what it starts, use these services. Before Prefect or Ray is imported."""
    os.environ.update(services.environment())


@contextmanager
def available(log_directory: Path, abandon: Callable[[ServiceDied], object]) -> Iterator[str]:
    """Services to train with; the address of Prefect's API.

    Those that PREFECT_API_URL and RAY_ADDRESS name, where both are set; else those of `rlvr up`; else new ones on
    free ports, which end with the block.

    Args:
        abandon: as that of `watched`.

    Raises:
        ServiceError: one of the new ones did not start.
        ServiceDied: one of them died.
    """
    if os.environ.keys() >= {"PREFECT_API_URL", "RAY_ADDRESS"}:
        yield os.environ["PREFECT_API_URL"]
        return
    if up := recorded():
        use(up)
        yield up.api_url
        return
    services = Services(
        prefect_port=free_port(), ray_port=free_port(), ray_token=secrets.token_hex(16), home=str(log_directory)
    )
    use(services)
    try:
        start_server(services, end_with_parent=True)
        start_ray(services, end_with_parent=True)
        await_server(services)
        await_ray(services)
        with watched(services.processes, abandon):
            yield services.api_url
    finally:
        stop(services)


@contextmanager
def ray_available(log_directory: Path) -> Iterator[None]:
    """Ray alone: that of RAY_ADDRESS, where it is set; else that of `rlvr up`; else one that ends with the block."""
    if "RAY_ADDRESS" in os.environ:
        yield
        return
    if up := recorded():
        use(up)
        yield
        return
    services = Services(
        prefect_port=free_port(), ray_port=free_port(), ray_token=secrets.token_hex(16), home=str(log_directory)
    )
    use(services)
    try:
        start_ray(services, end_with_parent=True)
        await_ray(services)
        yield
    finally:
        stop(services)


def start(prefect_port: int, ray_port: int) -> Services:
    """All of them, recorded, to stay until `stop_recorded`. What is recorded and alive is kept; what died is replaced.

    Raises:
        ServiceError: a port is taken, or a service does not start; then none started here is left running.
    """
    with changing_record():
        before = read_record()
        kept = [service for service in before.processes if service.process()] if before else []
        fresh = Services(
            prefect_port=prefect_port,
            ray_port=ray_port,
            ray_token=secrets.token_hex(16),
            home=str(record_path().parent),
        )
        services = before.model_copy(update={"given_up": {}}) if before and kept else fresh
        try:
            revive(services)
            write_record(services)
            if services.named(SUPERVISOR) not in kept:
                start_supervisor(services)
        except BaseException:
            services.processes = [service for service in services.processes if service not in kept]
            stop(services)
            raise
        write_record(services)
    return services


def revive(services: Services) -> None:
    """Start the services that are not alive, and wait until they answer.

    Raises:
        ServiceError: one does not start.
    """
    alive = {service.name for service in services.processes if service.process()}
    if SERVER not in alive:
        start_server(services)
    if RAY not in alive:
        start_ray(services)
    await_server(services)
    await_ray(services)
    if WORKER not in alive:
        try:
            deploy(services)
        except ServiceHangs:
            # Prefect 3.7.7 on SQLite: an automation that is made in the moment in which the server looks through them
            # stops its event loop for good. It is in the database by then.
            server = services.named(SERVER)
            assert server is not None
            restart(services, server)
            deploy(services)
        start_worker(services)


def restart(services: Services, dead: Service) -> None:
    """Start one service again, without what is left of the dead one. Flow runs of a dead worker go on.

    Raises:
        ServiceError: it does not start.
    """
    if dead.name == WORKER:
        start_worker(services)
        return
    end(dead)
    if dead.name == SERVER:
        start_server(services)
        await_server(services)
    if dead.name == RAY:
        start_ray(services)
        await_ray(services)


def stop_recorded() -> list[str]:
    """End what is recorded; the names of those that were alive."""
    services = read_record()
    if services is None:
        return []
    # It would start them again. What it was just about to start is found by its mark.
    supervisor = services.named(SUPERVISOR)
    stopped = [SUPERVISOR] if supervisor and end(supervisor) else []
    with changing_record():
        services = read_record()
        if services is None:
            return stopped
        stopped += stop(services)
        record_path().unlink()
    return stopped


def stop(services: Services) -> list[str]:
    """End the services, newest first, with everything they started; the names of those that were alive."""
    return [
        service.name
        for service in reversed(services.processes)
        if end(service, RAY_STOP_SECONDS if service.name == RAY else STOP_SECONDS)
    ]


def deploy(services: Services) -> None:
    """Make the work pool, then the deployments of prefect.yaml in the working directory, and the automation.

    Raises:
        ServiceHangs: the server does not answer.
        ServiceError: with what Prefect said.
    """
    prefect = ["prefect", "--no-prompt"]
    environment = {**os.environ, **services.environment(), "PWD": os.getcwd()}
    for command in (
        [*prefect, "work-pool", "create", POOL, "--type", "process", "--overwrite"],
        [*prefect, "deploy", "--all"],
        ["flows.automations"],
    ):
        try:
            done = subprocess.run(
                [sys.executable, "-m", *command],
                env=environment,
                capture_output=True,
                text=True,
                timeout=DEPLOY_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise ServiceHangs(f"`{' '.join(command)}` was not done after {DEPLOY_SECONDS:.0f} s") from None
        if done.returncode != 0:
            raise ServiceError(f"`{' '.join(command)}` failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")


def start_server(services: Services, *, end_with_parent: bool = False) -> None:
    refuse_taken_port(services.prefect_port, "the Prefect server")
    environment = {
        "PREFECT_SERVER_API_HOST": HOST,
        "PREFECT_SERVER_API_PORT": str(services.prefect_port),
        "PREFECT_LOGGING_SERVER_LEVEL": "WARNING",
        # A request that meets a write of this service to SQLite is answered 503, and its client waits 2 s: write
        # task states together every 2 s, not one by one.
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "500",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "2",
    }
    command = [sys.executable, "-m", "prefect", "server", "start"]
    _start(services, SERVER, command, environment, end_with_parent)


def start_ray(services: Services, *, end_with_parent: bool = False) -> None:
    refuse_taken_port(services.ray_port, "the Ray head")
    command = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block"]
    command += [f"--node-ip-address={HOST}", f"--port={services.ray_port}"]
    command += ["--include-dashboard=false", "--disable-usage-stats"]
    environment = {
        # Stages that run together are more than the cores of a small machine. Ray keeps no more idle workers than
        # there are cores, and one that it ends takes seconds to start again.
        "RAY_num_workers_soft_limit": str(STAGE_WORKERS),
        # What the head remembers, for `ray list tasks`: 100,000 would be hundreds of MB.
        "RAY_task_events_max_num_task_in_gcs": "1000",
    }
    _start(services, RAY, command, environment, end_with_parent)


def start_worker(services: Services) -> None:
    # The server tells it of flow runs; each query writes to the database too, where stages write meanwhile.
    _start(services, WORKER, [sys.executable, "-m", "flows.worker"], {"PREFECT_WORKER_QUERY_SECONDS": "3"})


def start_supervisor(services: Services) -> None:
    _start(services, SUPERVISOR, [sys.executable, "-m", "flows.supervisor"], {})


def _start(
    services: Services, name: str, command: list[str], environment: dict[str, str], end_with_parent: bool = False
) -> None:
    log = Path(services.home) / f"{name}.log"
    environment = {**services.environment(), **environment}
    services.keep(start_process(name, command, environment, log, end_with_parent=end_with_parent))


def await_server(services: Services) -> None:
    """Until the server answers.

    Raises:
        ServiceError: it ended, or did not answer in time.
    """

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"{services.ui_url}/api/health", timeout=2) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    server = services.named(SERVER)
    assert server is not None
    await_ready(server, answers)


def await_ray(services: Services) -> None:
    """Until the head's control service accepts connections and its node has registered.

    Raises:
        ServiceError: it ended, or was not ready in time.
    """
    head = services.named(RAY)
    assert head is not None
    await_ready(head, lambda: "Ray runtime started" in Path(head.log).read_text(errors="replace"))
