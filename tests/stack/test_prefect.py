"""What users do to flow runs, and what dies under them: on one `rlvr up`, with the tiny model of real engines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from flows import services
from flows.automations import SILENCE_SECONDS
from flows.processes import members
from flows.services import HEARTBEAT_SECONDS
from rlcore.progress import progress_file, read_progress
from rlcore.store import RunStore
from tests.stack import dashboard
from tests.stack.chaos.retrying import processes_of
from tests.stack.pipeline import Up, store_of, tiny_training, up, wait_until

FINISHED = ["sample", "generate", "reward", "advantage", "update", "sync"]
RUN = "supervised"


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> list[str]:
    return tiny_training(tmp_path_factory.mktemp("prefect"), tiny_llama)


@pytest.fixture(scope="module")
def overrides(workplace: list[str]) -> list[str]:
    """Responses that take seconds to generate."""
    long = ["rollout.num_return_sequences_in_group=32", "rollout.response_length=200", "hardware.kv_cache_gib=0.2"]
    return [*workplace, *long, f"run={RUN}", "eval_steps=0", "save_steps=0", "iterations=9"]


@pytest.fixture(scope="module")
def store(overrides: list[str]) -> RunStore:
    return store_of(overrides, RUN)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Leaves no process."""
    with up(tmp_path_factory.mktemp("cache")) as services_up:
        yield services_up
        before = services_up.services.processes
    assert not [process for service in before for process in members(service)]


def answers(running: Up) -> bool:
    try:
        return bool(running.ask("GET", "health"))
    except httpx.HTTPError:
        return False


def updates(store: RunStore) -> list[int]:
    return [entry.iteration for entry in store.ledger() if entry.stage == "update"]


def generating(store: RunStore, iteration: int) -> psutil.Process:
    """The engine's process, in the middle of the iteration's generation."""
    wait_until(lambda: store.exists("ledger.jsonl") and store.find(iteration, "sample"), "it has sampled")
    engine = wait_until(lambda: engine_at_work(store), "it generates")
    assert engine is not None and store.find(iteration, "generate") is None, "the generation was over too soon"
    return engine


def engine_at_work(store: RunStore) -> psutil.Process | None:
    """The process of the run's engine, once it has some tokens."""
    progress = read_progress(progress_file(store.directory, "engine-0"))
    if progress is None or not any(step.name == "tokens" and step.done for step in progress.steps):
        return None
    return next(child for child in psutil.Process(progress.pid).children() if child.name() == "VLLM::EngineCore")


def test_retry_in_the_dashboard_goes_on_at_the_failed_stage(running: Up, workplace: list[str], tmp_path: Path) -> None:
    flow_run, before = dashboard.fail_and_retry(running, workplace, tmp_path / "volume", pictures=tmp_path)

    def stages_in(attempt: int) -> dict[str, str]:
        """State of each stage's task run."""
        wanted = {"flow_runs": {"id": {"any_": [flow_run]}}}
        task_runs: list[dict[str, Any]] = running.ask("POST", "task_runs/filter", wanted)
        of_attempt = [task_run for task_run in task_runs if task_run["flow_run_run_count"] == attempt]
        return {task_run["name"].split("-")[0]: task_run["state"]["name"] for task_run in of_attempt}

    assert running.state_of(flow_run) == "COMPLETED"
    first, second = dict.fromkeys(FINISHED, "Completed"), dict.fromkeys(FINISHED, "Cached")
    # The server records the states of tasks some seconds late.
    wait_until(lambda: stages_in(1) == {**first, "checkpoint": "Failed"}, "the first attempt failed", 20)
    wait_until(lambda: stages_in(2) == {**second, "checkpoint": "Completed"}, "finished stages are kept", 20)

    ledger = store_of(workplace, dashboard.RUN).ledger()
    assert [entry.stage for entry in before] == FINISHED
    assert ledger[: len(before)] == before, "what was finished was computed again"
    assert [entry.stage for entry in ledger[len(before) :]] == ["checkpoint"]
    assert (tmp_path / "volume" / "000001" / "MANIFEST").is_file()
    assert (tmp_path / dashboard.FAILED).read_bytes() != (tmp_path / dashboard.COMPLETED).read_bytes()


def test_a_cancelled_iteration_stops_generating_and_the_next_run_goes_on(
    running: Up, overrides: list[str], store: RunStore
) -> None:
    flow_run = running.start_deployment(overrides)
    engine = generating(store, 1)
    flow = processes_of(flow_run)
    assert flow
    running.prefect("flow-run", "cancel", flow_run)
    wait_until(lambda: running.state_of(flow_run) == "CANCELLED", "it is cancelled", 60)
    assert not psutil.wait_procs(flow, timeout=5)[1]
    assert engine.is_running() and engine.cpu_percent(1.0) < 5
    assert [entry.stage for entry in store.ledger() if entry.iteration == 1] == ["sample"]
    assert not (store.directory / "owner.json").exists()


def test_a_run_goes_on_after_server_worker_and_flow_were_killed_and_a_cancelled_training_releases_its_engines(
    running: Up, overrides: list[str], store: RunStore
) -> None:
    killed = running.start_deployment(overrides)
    generating(store, 1)
    dying = [service for service in running.services.processes if service.name in (services.SERVER, services.WORKER)]
    for process in [*processes_of(killed), *(psutil.Process(service.pid) for service in dying)]:
        process.kill()
    died = time.monotonic()
    wait_until(
        lambda: not running.services.dead() and not any(s in running.services.processes for s in dying), "they are back"
    )
    wait_until(lambda: answers(running), "the server answers")

    training = running.start_deployment(overrides, "train/local")
    engine = generating(store, 2)
    assert updates(store) == [1], "the iteration that was cancelled, then killed, was not gone on with"
    running.cancel(training)
    wait_until(lambda: running.state_of(training) == "CANCELLED", "it is cancelled", 60)
    wait_until(lambda: not engine.is_running(), "the engine is released", 20)
    assert updates(store) == [1]

    assert running.state_of(killed) in {"RUNNING", "CRASHED"}
    wait_until(lambda: running.state_of(killed) == "CRASHED", "it is known to have crashed", SILENCE_SECONDS + 30)
    assert time.monotonic() - died > HEARTBEAT_SECONDS
