"""The processes that a training needs around it: Prefect server, Ray head, Prefect worker.

`rlvr up` starts them for good and records them; `rlvr train` without `rlvr up` starts its own for as
long as it runs. All are told to listen on loopback; Ray binds every interface all the same, so it asks for a token.
Only processes started here are ever ended, by pid.
Importable without Prefect and Ray: it sets the environment that both read when they are imported.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from pydantic import BaseModel

from rlcore.pretrained import cache_directory

HOST = "127.0.0.1"
POOL = "rlvr"
SERVER, RAY, WORKER = "prefect-server", "ray-head", "prefect-worker"
START_SECONDS = 90.0
STOP_SECONDS = 15.0


class ServiceError(RuntimeError):
    """A service did not start, or what it needs is taken."""


class Service(BaseModel):
    """One started process."""

    name: str
    pid: int
    created: float
    """Start time of the process; with the pid it tells it from a later one of the same number."""
    log: str


class Services(BaseModel):
    """What is running, and how to reach it."""

    prefect_port: int
    ray_port: int
    ray_token: str
    home: str
    processes: list[Service] = []

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
            "DO_NOT_TRACK": "1",
            "RAY_ADDRESS": f"{HOST}:{self.ray_port}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.ray_token,
            "RAY_USAGE_STATS_ENABLED": "0",
            # Ray's name for "this machine only": else it takes 127.0.0.1 for the address that other machines reach.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        }


def record_path() -> Path:
    return cache_directory() / "services" / "up.json"


def recorded() -> Services | None:
    """The services of `rlvr up`, if all of them are alive."""
    services = _read_record()
    whole = services is not None and all(_process(service) for service in services.processes)
    return services if whole else None


def use(services: Services) -> None:
    """Make this process, and what it starts, use these services. Before Prefect or Ray is imported."""
    os.environ.update(services.environment())


@contextmanager
def available(log_directory: Path) -> Iterator[str]:
    """Services to train with; the address of Prefect's API.

    Those that PREFECT_API_URL and RAY_ADDRESS name, where both are set; else those of `rlvr up`; else new ones on
    free ports, which end with the block.
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
    services = _alive_part(_read_record()) or Services(
        prefect_port=prefect_port,
        ray_port=ray_port,
        ray_token=secrets.token_hex(16),
        home=str(record_path().parent),
    )
    running = {service.name for service in services.processes}
    kept = services.model_copy(deep=True)
    try:
        if SERVER not in running:
            start_server(services, end_with_parent=False)
        if RAY not in running:
            start_ray(services, end_with_parent=False)
        await_server(services)
        await_ray(services)
        if WORKER not in running:
            _deploy(services)
            start_worker(services)
    except BaseException:
        services.processes = services.processes[len(kept.processes) :]
        stop(services)
        raise
    record_path().touch(mode=0o600)  # the token is not for others
    record_path().write_text(services.model_dump_json(indent=2))
    return services


def stop_recorded() -> list[str]:
    """End what is recorded; the names of those that were alive."""
    services = _read_record()
    if services is None:
        return []
    stopped = stop(services)
    record_path().unlink()
    return stopped


def _read_record() -> Services | None:
    path = record_path()
    return Services.model_validate_json(path.read_text()) if path.is_file() else None


def _alive_part(services: Services | None) -> Services | None:
    """The services with only the processes that are alive; None if none is."""
    alive = [service for service in services.processes if _process(service)] if services else []
    return services.model_copy(update={"processes": alive}) if services and alive else None


def _deploy(services: Services) -> None:
    """Make the work pool, then the deployments of prefect.yaml in the working directory.

    Raises:
        ServiceError: with what Prefect said.
    """
    prefect = [sys.executable, "-m", "prefect", "--no-prompt"]
    environment = {**os.environ, **services.environment(), "PWD": os.getcwd()}
    for command in (["work-pool", "create", POOL, "--type", "process", "--overwrite"], ["deploy", "--all"]):
        done = subprocess.run([*prefect, *command], env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise ServiceError(f"`prefect {' '.join(command)}` failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")


def start_server(services: Services, *, end_with_parent: bool) -> None:
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


def start_ray(services: Services, *, end_with_parent: bool) -> None:
    refuse_taken_port(services.ray_port, "the Ray head")
    command = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block"]
    command += [f"--node-ip-address={HOST}", f"--port={services.ray_port}"]
    command += ["--include-dashboard=false", "--disable-usage-stats"]
    _start(services, RAY, command, {}, end_with_parent)


def start_worker(services: Services) -> None:
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process"]
    _start(services, WORKER, command, {}, end_with_parent=False)


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

    _await(services, SERVER, answers)


def await_ray(services: Services) -> None:
    """Until the head's control service accepts connections and its node has registered.

    Raises:
        ServiceError: it ended, or was not ready in time.
    """
    log = Path(next(service.log for service in services.processes if service.name == RAY))
    _await(services, RAY, lambda: "Ray runtime started" in log.read_text(errors="replace"))


def stop(services: Services) -> list[str]:
    """End the processes, newest first, with everything they started; the names of those that were alive."""
    stopped = []
    for service in reversed(services.processes):
        process = _process(service)
        if process is None:
            continue
        stopped.append(service.name)
        # Between being found and being ended any of them may end by itself.
        family = [process]
        with suppress(psutil.NoSuchProcess):
            family += process.children(recursive=True)
            process.terminate()
        psutil.wait_procs([process], timeout=STOP_SECONDS)
        _, alive = psutil.wait_procs(family, timeout=2.0)
        for survivor in alive:
            with suppress(psutil.NoSuchProcess):
                survivor.kill()
        psutil.wait_procs(alive, timeout=STOP_SECONDS)
    return stopped


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


def refuse_taken_port(port: int, what: str) -> None:
    """
    Raises:
        ServiceError: something listens there; names its process where this user may see it.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            return
        except OSError:
            pass
    owners = [c.pid for c in psutil.net_connections("tcp") if c.laddr and c.laddr.port == port and c.status == "LISTEN"]
    owner = f" by process {owners[0]}" if owners and owners[0] else ""
    raise ServiceError(
        f"port {port}, meant for {what}, is in use{owner}: end that process, `rlvr down` if it is ours, "
        "or give another port (rlvr up --port, --ray-port)"
    )


def _start(
    services: Services, name: str, command: list[str], environment: dict[str, str], end_with_parent: bool
) -> None:
    log = Path(services.home) / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **services.environment(), **environment},
            # A session of its own: Ctrl-C in the terminal reaches the training, which then ends these in order.
            start_new_session=True,
            preexec_fn=_end_with_parent if end_with_parent else None,
        )
    created = psutil.Process(process.pid).create_time()
    services.processes.append(Service(name=name, pid=process.pid, created=created, log=str(log)))


def _end_with_parent() -> None:
    """In the child: SIGTERM when the parent dies, however it dies."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)


def _process(service: Service) -> psutil.Process | None:
    """The live process of a service."""
    try:
        process = psutil.Process(service.pid)
        same = abs(process.create_time() - service.created) < 1.0
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def _await(services: Services, name: str, ready: Callable[[], bool]) -> None:
    service = next(service for service in services.processes if service.name == name)
    deadline = time.monotonic() + START_SECONDS
    while not ready():
        ended = _process(service) is None
        if ended or time.monotonic() > deadline:
            tail = "\n".join(Path(service.log).read_text(errors="replace").splitlines()[-15:])
            fate = "ended while starting" if ended else f"was not ready after {START_SECONDS:.0f} s"
            raise ServiceError(f"{name} {fate}; the end of {service.log}:\n{tail}")
        time.sleep(0.2)
