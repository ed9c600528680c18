"""After a pruning a run goes on, its report is written, and verify calls nothing of it missing."""

from __future__ import annotations

import io
import os
import shutil
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from flows.runs import next_iteration
from rlcore.iteration import Iteration
from rlcore.pruning import plan_pruning, prune
from rlcore.retention import dispensable
from rlcore.store import RunStore
from rlcore.tracking.report import write_report
from rlcore.trainer.checkpoint import CheckpointDamaged, newest_good, published
from rlcore.verification.findings import Verification
from rlcore.verification.run import verify_run
from tests.entries import ledger_entry
from tests.recorded_run import RecordedRun


@pytest.fixture
def run(tmp_path: Path) -> RecordedRun:
    """Six of eight iterations and the seventh up to its update; iteration 2 was the best."""
    run = RecordedRun(tmp_path / "run", 8)
    run.record(0, "evaluate", {})
    accuracies = {0: 0.1, 2: 0.5, 4: 0.3, 6: 0.4}
    run.log(0, accuracies)
    for iteration in range(1, 7):
        run.record_iteration(iteration)
        run.log(iteration, accuracies)
    run.record_iteration(7, until="update")
    return run


def verified(store: RunStore) -> Verification:
    return verify_run(store, Console(file=io.StringIO()))


def prune_all(store: RunStore) -> None:
    prune(store, plan_pruning(store))


def test_the_plan_says_how_much_and_deletes_nothing(run: RecordedRun) -> None:
    before = sorted(run.store.directory.rglob("*"))
    batches, checkpoints = plan_pruning(run.store).lines()
    assert batches.startswith("iterations 1–6: 0.1 MB of batches in ")
    assert checkpoints == "checkpoints 4: 0.0 MB"
    assert sorted(run.store.directory.rglob("*")) == before


def test_the_newest_and_the_best_checkpoint_stay(run: RecordedRun) -> None:
    prune_all(run.store)
    assert [path.name for path in published(run.store.directory / "checkpoints")] == ["000002", "000006"]


def test_a_pruned_run_verifies_and_says_how_much_was_pruned(run: RecordedRun) -> None:
    before = verified(run.store)
    plan = plan_pruning(run.store)
    prune(run.store, plan)
    after = verified(run.store)
    assert before.wrong == after.wrong == []
    assert (after.outputs, after.pruned) == (before.outputs - len(plan.outputs), len(plan.outputs))
    assert f"({len(plan.outputs)} more pruned)" in after.summary


def test_a_pruned_run_goes_on(run: RecordedRun) -> None:
    """Everything that the next iteration, a restored trainer, and the report read is there."""
    prune_all(run.store)
    assert next_iteration(run.config, run.store) == 7
    underway = Iteration(run.config, run.store, 7)
    assert underway.previous_state is not None and run.store.is_intact(underway.previous_state)
    assert all(run.store.is_intact(entry.output) for entry in run.store.ledger() if entry.iteration == 7)
    checkpoint = newest_good(published(run.store.directory / "checkpoints"))
    assert checkpoint is not None and checkpoint.name == "000006"
    assert write_report(run.store.directory).is_file()

    run.record_iteration(7)
    run.record_iteration(8)
    run.log(7, {})
    run.log(8, {8: 0.9})
    assert next_iteration(run.config, run.store) == 9
    assert verified(run.store).wrong == []
    assert write_report(run.store.directory).is_file()
    prune_all(run.store)
    assert verified(run.store).wrong == []
    assert [path.name for path in published(run.store.directory / "checkpoints")] == ["000008"]


def test_a_pruned_run_has_nothing_more_to_prune(run: RecordedRun) -> None:
    prune_all(run.store)
    assert plan_pruning(run.store).sizes == {}


def test_what_was_pruned_and_what_is_missing_are_told_apart(run: RecordedRun) -> None:
    prune_all(run.store)
    (run.store.directory / "iterations/000007/train.parquet").unlink()
    (finding,) = verified(run.store).wrong
    assert finding.where == "iterations/000007/train.parquet (iteration 7, advantage)"
    assert "is missing" in finding.what


def test_a_pruning_that_was_interrupted_is_recorded_and_goes_on(run: RecordedRun) -> None:
    plan = plan_pruning(run.store)
    prune(run.store, plan)
    path = run.store.directory / next(iter(plan.outputs))
    path.write_bytes(b"as if it had not been deleted")
    (finding,) = verified(run.store).wrong
    assert "is damaged" in finding.what
    prune_all(run.store)
    assert not path.exists() and verified(run.store).wrong == []


def test_what_the_run_itself_deleted_after_the_plan_is_passed_over(run: RecordedRun) -> None:
    plan = plan_pruning(run.store)
    shutil.rmtree(run.store.directory / "checkpoints/000004")
    prune(run.store, plan)
    assert verified(run.store).wrong == []


def test_a_damaged_newest_checkpoint_goes_and_the_batches_after_the_one_before_stay(run: RecordedRun) -> None:
    (run.store.directory / "checkpoints/000006/megatron/weights").write_bytes(b"else")
    plan = plan_pruning(run.store)
    assert plan.checkpoints == [6]
    assert {int(Path(path).parent.name) for path in plan.outputs} == {1, 2, 3, 4}
    prune(run.store, plan)
    assert verified(run.store).wrong == []
    checkpoint = newest_good(published(run.store.directory / "checkpoints"))
    assert checkpoint is not None and checkpoint.name == "000004"
    replayed = [run.store.find(iteration, "update") for iteration in (5, 6)]
    assert all(entry is not None and run.store.is_intact(entry.inputs["batch"]) for entry in replayed)


def test_where_no_checkpoint_is_good_nothing_is_planned(run: RecordedRun) -> None:
    for path in run.store.directory.glob("checkpoints/*/megatron/weights"):
        path.write_bytes(b"else")
    with pytest.raises(CheckpointDamaged, match="no checkpoint is good"):
        plan_pruning(run.store)


def test_a_run_without_a_checkpoint_keeps_every_batch(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path / "run", 8)
    run.record_iteration(1)
    run.log(1, {})
    assert plan_pruning(run.store).sizes == {}


def test_what_interrupted_writes_left_goes_unless_it_was_touched_lately(run: RecordedRun) -> None:
    directory = run.store.directory
    old, new = directory / "iterations/000003/.train.parquet-abcdefgh", directory / "checkpoints/.saving/weights"
    for path in (old, new):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 3600,) * 2)
    plan = plan_pruning(run.store)
    assert plan.leftovers == ["iterations/000003/.train.parquet-abcdefgh"]
    assert plan.lines()[-1] == "interrupted writes: 0.0 MB in 1 files or directories"
    prune(run.store, plan)
    assert not old.exists() and new.exists()


STAGES = {
    "sample": "PromptBatch",
    "generate": "RolloutBatch",
    "statistics": "RunState",
    "advantage": "TrainBatch",
    "update": "UpdateReport",
    "evaluate": "EvalBatch",
}


@given(
    iterations=st.integers(0, 9),
    stages_of_the_last=st.integers(1, len(STAGES)),
    newest_good=st.integers(0, 9),
    kept=st.sets(st.integers(1, 9)),
    logged=st.sets(st.integers(0, 9)),
)
def test_nothing_that_going_on_reads_is_ever_dispensable(
    iterations: int, stages_of_the_last: int, newest_good: int, kept: set[int], logged: set[int]
) -> None:
    entries = [
        ledger_entry(iteration, stage)
        for iteration in range(1, iterations + 1)
        for stage in list(STAGES)[: stages_of_the_last if iteration == iterations else None]
    ]
    entries = [
        entry.model_copy(update={"output": entry.output.model_copy(update={"schema_name": STAGES[entry.stage]})})
        for entry in entries
    ]
    gone = {(entry.iteration, entry.stage) for entry in dispensable(entries, logged, newest_good, kept)}
    assert not any(iteration > newest_good or iteration == iterations for iteration, _ in gone)
    assert not any(stage == "update" for _, stage in gone)
    assert (iterations - 1, "statistics") not in gone
    assert not gone & {(iteration, stage) for iteration in kept for stage in ("evaluate", "statistics")}
    evaluated = [entry.iteration for entry in entries if entry.stage == "evaluate"]
    assert not evaluated or not gone & {(min(evaluated), "evaluate"), (max(evaluated), "evaluate")}
    assert {iteration for iteration, _ in gone} <= logged
    old = set(range(1, min(newest_good, iterations - 1) + 1)) & logged
    assert {(iteration, "generate") for iteration in old} <= gone
