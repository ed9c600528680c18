"""A stage whose process died is tried again, and says so when it gives up; what would fail again is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from prefect import Task
from prefect.client.schemas.objects import State
from prefect.task_engine import run_task_sync
from prefect.testing.utilities import prefect_test_harness
from ray.exceptions import ActorDiedError, GetTimeoutError, RayTaskError, WorkerCrashedError

from rlcore.batches import BatchError, LogprobBatch
from rlcore.cluster.placement import NoRoom
from rlcore.cluster.ranks import RankFailed
from rlcore.compose import compose
from rlcore.config_errors import ConfigError
from rlcore.generation.interface import EngineDied, EngineUnfit
from rlcore.iteration import Iteration
from rlcore.rewards.interface import GradersDied, GradersFailed, ServicesFailed
from rlcore.store import RunStore, StoreError
from rlcore.sync_check import SyncFailed
from rlcore.trainer.checkpoint import CheckpointDamaged
from rlcore.trainer.updates import UpdateRefused
from tasks import retries
from tasks.retries import is_transient
from tasks.stage import stage

FAILURES: list[Exception] = []
"""What the next attempts fail with."""


@stage(reads=("seed",), writes=LogprobBatch, to="fragile")
def fragile(iteration: Iteration) -> pl.DataFrame:
    if FAILURES:
        raise FAILURES.pop(0)
    return pl.DataFrame({"sample_id": ["a"], "logprobs": pl.Series([[-1.0]], dtype=pl.List(pl.Float32))})


@pytest.fixture(scope="module", autouse=True)
def server() -> Any:
    with prefect_test_harness():
        yield


@pytest.fixture
def iteration(tmp_path: Path) -> Iteration:
    return Iteration(compose("arithmetic", []), RunStore(str(tmp_path)), 3)


def run(iteration: Iteration, *failures: Exception) -> State[Any]:
    """The state of a task run whose attempts fail with these, one after the other."""
    FAILURES[:] = failures
    at_once: Task[..., Any] = fragile.with_options(retry_delay_seconds=[0.01] * len(retries.PAUSES_SECONDS))
    state = run_task_sync(at_once, parameters={"iteration": iteration}, return_type="state")
    assert isinstance(state, State)
    return state


def error_of(state: State[Any]) -> BaseException:
    error = state.result(raise_on_failure=False)
    assert isinstance(error, BaseException)
    return error


def constructor_failed() -> ActorDiedError:
    return ActorDiedError(RayTaskError("__init__", "the traceback", ConfigError("no such grader")))


@pytest.mark.parametrize(
    "error",
    [
        EngineDied("died"),
        GradersDied("died"),
        ServicesFailed("overloaded"),
        RankFailed("died"),
        ActorDiedError(),
        WorkerCrashedError(),
        ConnectionResetError("gone"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_dead_process_is_worth_another_attempt(error: Exception) -> None:
    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        BatchError("a null"),
        CheckpointDamaged("a flipped bit"),
        ConfigError("unknown key"),
        EngineUnfit("no memory for the cache"),
        GradersFailed("too many"),
        NoRoom("no GPU"),
        StoreError("damaged"),
        SyncFailed("too far apart"),
        UpdateRefused("out of order"),
        ValueError("anything"),
        KeyError("unknown"),
        GetTimeoutError("nobody has judged it"),
        constructor_failed(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_would_fail_again_is_not(error: Exception) -> None:
    assert not is_transient(error)


def test_a_stage_whose_process_died_is_done_by_a_later_attempt(iteration: Iteration) -> None:
    state = run(iteration, EngineDied("one"), RankFailed("two"), EngineDied("three"))
    assert state.is_completed()
    assert [entry.stage for entry in iteration.store.ledger()] == ["fragile"]


def test_a_stage_gives_up_after_four_attempts_and_says_what_died(iteration: Iteration) -> None:
    state = run(iteration, *(EngineDied(f"death {number}") for number in range(1, 6)))
    error = error_of(state)
    assert state.is_failed() and str(error) == "death 4" and len(FAILURES) == 1
    assert error.__notes__ == ["stage fragile, iteration 3: attempt 4 of 4; died before: EngineDied ×3"]


def test_an_error_that_another_attempt_does_not_mend_ends_the_attempts(iteration: Iteration) -> None:
    error = error_of(run(iteration, EngineDied("once"), BatchError("a null"), EngineDied("never reached")))
    assert isinstance(error, BatchError) and len(FAILURES) == 1
    assert error.__notes__ == ["stage fragile, iteration 3: attempt 2 of 4; died before: EngineDied ×1"]


def test_a_stage_that_fails_at_once_says_nothing_of_attempts(iteration: Iteration) -> None:
    error = error_of(run(iteration, ValueError("wrong")))
    assert error.__notes__ == ["stage fragile, iteration 3"]


def test_the_attempts_of_another_task_run_are_not_counted(iteration: Iteration) -> None:
    run(iteration, EngineDied("once"))
    error = error_of(run(iteration.__class__(iteration.config, iteration.store, 4), ValueError("wrong")))
    assert error.__notes__ == ["stage fragile, iteration 4"]
