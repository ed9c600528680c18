"""What dies under a flow run, and what is cancelled: on one `rlvr up`, with the tiny model of real engines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.request import Request, urlopen

import psutil
import pytest

from flows import services
from flows.automations import SILENCE_SECONDS
from flows.processes import free_port, members
from flows.services import HEARTBEAT_SECONDS
from rlcore.store import RunStore

REPOSITORY = Path(__file__).parents[2]
RLVR = [sys.executable, "-c", "from flows.cli import main; main()"]
PREFECT = [sys.executable, "-m", "prefect", "--no-prompt"]
FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
RUN = "supervised"

T = TypeVar("T")


@pytest.fixture(scope="module")
def overrides(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> list[str]:
    """Of configs/arithmetic.yaml: the tiny model, and responses that take seconds to generate."""
    directory = tmp_path_factory.mktemp("prefect")
    rows = [
        {
            "domain": "arithmetic",
            "tag": "lowercase",
            "prompt": f"Say {number}.",
            "ground_truth": {"rules": [{"kind": "lowercase"}]},
        }
        for number in range(16)
    ]
    (directory / "train.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return [
        f"runs_dir={directory}/runs",
        f"run={RUN}",
        f"model.path={tiny_llama}",
        "model.dtype=float32",
        f"data.train=['{directory}/train.jsonl']",
        f"data.held_out=['{directory}/train.jsonl']",
        "rewards.arithmetic.grader=format",
        "rollout.rollout_batch_size=4",
        "rollout.num_return_sequences_in_group=32",
        "rollout.response_length=200",
        "hardware.trainer_threads=1",
        "hardware.engine_threads=1",
        "hardware.kv_cache_gib=0.2",
        "sync.probe_tolerance=1e-3",
        "eval_steps=0",
        "save_steps=0",
        "iterations=9",
    ]


@pytest.fixture(scope="module")
def store(overrides: list[str]) -> RunStore:
    return RunStore(f"{overrides[0].removeprefix('runs_dir=')}/{RUN}")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """`rlvr up` on free ports; the environment of a shell that uses it. `rlvr down` leaves no process."""
    cache = tmp_path_factory.mktemp("cache")
    environment = {**os.environ, "RLVR_CACHE": str(cache)}
    ports = [f"--port={free_port()}", f"--ray-port={free_port()}"]
    started = subprocess.run([*RLVR, "up", *ports], cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert started.returncode == 0, started.stdout + started.stderr
    running = recorded({"RLVR_CACHE": str(cache)})
    yield {**environment, **running.environment()}
    before = recorded(environment).processes
    down = subprocess.run([*RLVR, "down"], cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert down.stdout.startswith("stopped supervisor, prefect-worker"), down.stdout + down.stderr
    assert not [process for service in before for process in members(service)]


def recorded(up: dict[str, str]) -> services.Services:
    return services.Services.model_validate_json((Path(up["RLVR_CACHE"]) / "services" / "up.json").read_text())


def wait_for(condition: Callable[[], T], what: str, seconds: float = 240.0) -> T:
    """What the condition answers once it holds."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"not in {seconds:.0f} s: {what}"
        time.sleep(0.1)
    return answer


def request(up: dict[str, str], path: str, body: dict[str, Any] | None = None) -> Any:
    """What the server's API answers; a POST where there is a body."""
    content = None if body is None else json.dumps(body).encode()
    with urlopen(
        Request(up["PREFECT_API_URL"] + path, data=content, headers={"Content-Type": "application/json"}), timeout=60
    ) as response:
        return json.load(response)


def start(up: dict[str, str], overrides: list[str], deployment: str) -> str:
    """A flow run of a deployment; its id."""
    found = request(up, f"/deployments/name/{deployment}")
    parameters = {"config": "arithmetic", "overrides": overrides}
    return str(request(up, f"/deployments/{found['id']}/create_flow_run", {"parameters": parameters})["id"])


def state_of(up: dict[str, str], flow_run: str) -> str:
    return str(request(up, f"/flow_runs/{flow_run}")["state"]["type"])


def finished(up: dict[str, str], flow_run: str, seconds: float = 240.0) -> str:
    """The final state of a flow run."""
    wait_for(lambda: state_of(up, flow_run) in FINAL, "the flow run is over", seconds)
    return state_of(up, flow_run)


def log_of(up: dict[str, str], flow_run: str) -> str:
    lines = request(up, "/logs/filter", {"logs": {"flow_run_id": {"any_": [flow_run]}}, "sort": "TIMESTAMP_ASC"})
    return "\n".join(line["message"] for line in lines)


def answers(up: dict[str, str]) -> bool:
    try:
        return bool(request(up, "/health"))
    except OSError:
        return False


def updates(store: RunStore) -> list[int]:
    return [entry.iteration for entry in store.ledger() if entry.stage == "update"]


def engine_process(up: dict[str, str]) -> psutil.Process | None:
    """The engine's, where it is at work: it used the processor for most of the last half second."""
    head = recorded(up).named(services.RAY)
    assert head is not None
    for process in members(head):
        try:
            if process.name() == "VLLM::EngineCore" and process.cpu_percent(0.5) > 20:
                return process
        except psutil.NoSuchProcess:
            continue
    return None


def generating(up: dict[str, str], store: RunStore, iteration: int) -> psutil.Process:
    """The engine's process, in the middle of the iteration's generation."""
    wait_for(lambda: store.exists("ledger.jsonl") and store.find(iteration, "sample"), "it has sampled")
    engine = wait_for(lambda: engine_process(up), "it generates")
    assert engine is not None and store.find(iteration, "generate") is None, "the generation was over too soon"
    return engine


def flow_processes(up: dict[str, str]) -> list[psutil.Process]:
    worker = recorded(up).named(services.WORKER)
    assert worker is not None
    return [process for process in members(worker) if process.pid != worker.pid]


def test_a_killed_engine_is_survived_inside_one_flow_run(
    up: dict[str, str], overrides: list[str], store: RunStore
) -> None:
    flow_run = start(up, overrides, "rlvr/iterate")
    generating(up, store, 1).kill()
    assert finished(up, flow_run) == "COMPLETED", log_of(up, flow_run)
    assert updates(store) == [1]
    assert "Retry 1/3" in log_of(up, flow_run)
    assert request(up, f"/flow_runs/{flow_run}")["run_count"] == 1


def test_a_cancelled_iteration_stops_generating_and_the_next_run_goes_on(
    up: dict[str, str], overrides: list[str], store: RunStore
) -> None:
    flow_run = start(up, overrides, "rlvr/iterate")
    engine = generating(up, store, 2)
    flow = flow_processes(up)
    assert flow
    cancelled = subprocess.run([*PREFECT, "flow-run", "cancel", flow_run], env=up, capture_output=True, text=True)
    assert cancelled.returncode == 0, cancelled.stdout + cancelled.stderr
    wait_for(lambda: state_of(up, flow_run) == "CANCELLED", "it is cancelled", seconds=60)
    assert not psutil.wait_procs(flow, timeout=5)[1]
    assert engine.is_running() and engine.cpu_percent(1.0) < 5
    assert [entry.stage for entry in store.ledger() if entry.iteration == 2] == ["sample"]
    assert not (store.directory / "owner.json").exists()


def test_a_run_goes_on_after_server_worker_and_flow_were_killed_and_a_cancelled_training_releases_its_engines(
    up: dict[str, str], overrides: list[str], store: RunStore
) -> None:
    killed = start(up, overrides, "rlvr/iterate")
    generating(up, store, 2)
    dying = [service for service in recorded(up).processes if service.name in (services.SERVER, services.WORKER)]
    for process in [*flow_processes(up), *(psutil.Process(service.pid) for service in dying)]:
        process.kill()
    died = time.monotonic()
    wait_for(lambda: not recorded(up).dead() and not any(s in recorded(up).processes for s in dying), "they are back")
    wait_for(lambda: answers(up), "the server answers")

    training = start(up, overrides, "train/local")
    engine = generating(up, store, 3)
    assert updates(store) == [1, 2], "the iteration that was cancelled, then killed, was not gone on with"
    request(up, f"/flow_runs/{training}/set_state", {"state": {"type": "CANCELLING"}, "force": True})
    wait_for(lambda: state_of(up, training) == "CANCELLED", "it is cancelled", seconds=60)
    wait_for(lambda: not engine.is_running(), "the engine is released", seconds=20)
    assert updates(store) == [1, 2]

    assert state_of(up, killed) in {"RUNNING", "CRASHED"}
    assert finished(up, killed, SILENCE_SECONDS + 30) == "CRASHED"
    assert time.monotonic() - died > HEARTBEAT_SECONDS
