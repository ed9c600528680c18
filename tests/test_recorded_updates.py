"""What a replay takes is known before anything is computed, or it is said what is missing."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from rlcore.pruning import plan_pruning, prune
from rlcore.recorded_updates import plan_replay
from rlcore.restoration import plan_restoration
from rlcore.store import RunStore, StoreError
from tests.recorded_run import RecordedRun


@pytest.fixture
def run(tmp_path: Path) -> RecordedRun:
    """Six of eight iterations with checkpoints after 2, 4 and 6, and the seventh up to its sync."""
    run = RecordedRun(tmp_path / "run", 8)
    for iteration in range(1, 7):
        run.record_iteration(iteration)
        run.log(iteration, {})
    run.record_iteration(7, until="sync")
    return run


def damage(store: RunStore, version: int) -> None:
    (store.directory / f"checkpoints/{version:06d}/megatron/weights").write_bytes(b"other")


def test_the_start_is_the_newest_good_checkpoint_before_the_first_update(run: RecordedRun) -> None:
    plan = plan_replay(run.store, 6, 7)
    assert plan.start.checkpoint == run.store.directory / "checkpoints/000004"
    assert list(plan.start.batches) == [5]
    damage(run.store, 4)
    plan = plan_replay(run.store, 6, 7)
    assert plan.start.checkpoint == run.store.directory / "checkpoints/000002"
    assert list(plan.start.batches) == [3, 4, 5]


def test_without_a_checkpoint_before_it_the_start_is_the_model_of_the_run(run: RecordedRun) -> None:
    plan = plan_replay(run.store, 2, 2)
    assert plan.start.checkpoint is None and list(plan.start.batches) == [1]


def test_each_update_has_its_report_and_the_digest_of_its_sync_where_there_is_one(run: RecordedRun) -> None:
    updates = plan_replay(run.store, 6, 7).updates
    assert [(update.iteration, update.report.iteration) for update in updates] == [(6, 6), (7, 7)]
    assert [update.weights_sha256 for update in updates] == [f"{6:064x}", None]


@pytest.mark.parametrize(("first", "last"), [(0, 2), (7, 8), (9, 9)])
def test_updates_that_are_not_there_are_refused_with_those_that_are(run: RecordedRun, first: int, last: int) -> None:
    with pytest.raises(StoreError, match=f"updates {first} to {last} cannot be replayed: .* those from 1 to 7"):
        plan_replay(run.store, first, last)


def test_a_run_without_an_update_is_refused(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path / "run", 8)
    run.record_iteration(1, until="update")
    with pytest.raises(StoreError, match="no update yet"):
        plan_replay(run.store, 1, 1)


def test_batches_that_were_pruned_are_told_from_those_that_are_missing(run: RecordedRun) -> None:
    (run.store.directory / "iterations/000005/train.parquet").unlink()
    with pytest.raises(StoreError, match=r"000005/train\.parquet is not there: update 5 cannot be applied again"):
        plan_replay(run.store, 6, 6)
    prune(run.store, plan_pruning(run.store))
    with pytest.raises(StoreError, match=r"000006/train\.parquet was deleted by `rlvr prune` \(it is in pruned\.jsonl"):
        plan_replay(run.store, 6, 6)
    assert plan_replay(run.store, 7, 7).start.checkpoint == run.store.directory / "checkpoints/000006"


def test_a_record_of_a_pruning_that_cannot_be_read_is_named(run: RecordedRun) -> None:
    prune(run.store, plan_pruning(run.store))
    record = run.store.directory / "pruned.jsonl"
    record.write_text("{}\n" + record.read_text())
    with pytest.raises(StoreError, match=r"pruned\.jsonl:1 is not the record of a pruning"):
        plan_replay(run.store, 6, 6)


def test_a_report_of_another_version_of_the_code_is_named_with_what_it_lacks(run: RecordedRun) -> None:
    entry = run.store.find(6, "sync")
    assert entry is not None
    content = json.loads(run.store.read_bytes(entry.output.path))
    del content["weights_sha256"]
    run.store.write_bytes(entry.output.path, json.dumps(content).encode())
    sha256 = hashlib.sha256(run.store.read_bytes(entry.output.path)).hexdigest()
    output = entry.output.model_copy(update={"sha256": sha256})
    run.store.record(entry.model_copy(update={"output": output}))
    with pytest.raises(StoreError, match=r"000006/sync\.json is no SyncReport .*\(weights_sha256: Field required\)"):
        plan_replay(run.store, 6, 6)


def test_ranks_that_have_come_further_than_every_checkpoint_go_on_from_where_they_are(run: RecordedRun) -> None:
    plan = plan_restoration(run.store, held=6, wanted=7)
    assert plan.checkpoint is None and list(plan.batches) == [7]
    shutil.rmtree(run.store.directory / "checkpoints")
    assert list(plan_restoration(run.store, held=0, wanted=3).batches) == [1, 2, 3]
