"""Whatever happens to a run directory, verify names it; and a run that nothing happened to has nothing wrong."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from rlcore.batches import RolloutBatch
from rlcore.rollout.journal import State
from rlcore.store import BatchRef, LedgerEntry, RunStore
from rlcore.verification.findings import Finding, Verification
from rlcore.verification.run import verify_run
from tests.recorded_run import RecordedRun
from tests.test_batches import batch_of

ITERATIONS = 4


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four iterations, with checkpoints after the second and the fourth. Only copied from."""
    run = RecordedRun(tmp_path_factory.mktemp("recorded") / "run", ITERATIONS)
    run.record_all({0: 0.1, 2: 0.5, 4: 0.3})
    return run.store.directory


@pytest.fixture
def store(recorded: Path, tmp_path: Path) -> RunStore:
    """A copy that a test may change."""
    return RunStore(str(shutil.copytree(recorded, tmp_path / "run")))


def verified(store: RunStore) -> Verification:
    return verify_run(store, Console(file=io.StringIO()))


def only_finding(store: RunStore) -> Finding:
    (finding,) = verified(store).findings
    return finding


def digests(directory: Path) -> dict[str, str]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def edit_lines(path: Path, change: Callable[[list[str]], object]) -> None:
    lines = path.read_text().splitlines()
    change(lines)
    path.write_text("".join(f"{line}\n" for line in lines))


def line_of(store: RunStore, iteration: int, stage: str) -> int:
    """Index of a stage's line in the ledger."""
    return [(entry.iteration, entry.stage) for entry in store.ledger()].index((iteration, stage))


def rerecord(store: RunStore, iteration: int, recorded_stage: str, **changes: object) -> None:
    """A further line of a stage, with some fields changed."""
    entry = store.find(iteration, recorded_stage)
    assert entry is not None
    store.record(LedgerEntry.model_validate({**entry.model_dump(), **changes}))


def test_a_run_that_nothing_happened_to_has_nothing_wrong_and_is_not_changed(store: RunStore) -> None:
    before = digests(store.directory)
    result = verified(store)
    assert result.findings == []
    assert result.summary == "verified: 37 stage outputs, 2 checkpoints, nothing wrong"
    assert digests(store.directory) == before


@pytest.mark.parametrize("stage", ["sample", "generate", "reward", "ref_logprob", "statistics", "advantage", "update"])
def test_a_run_that_was_killed_after_any_stage_has_nothing_wrong(tmp_path: Path, stage: str) -> None:
    run = RecordedRun(tmp_path / "run", 2)
    run.record_iteration(1, until=stage)
    result = verified(run.store)
    assert result.wrong == []
    assert len(result.findings) == (stage != "sample")  # The row of metrics that the run has still to write.


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(data=st.data())
def test_any_damage_to_any_output_or_checkpoint_is_found_where_it_is(store: RunStore, data: st.DataObject) -> None:
    files = [path for path in store.directory.glob("[ic]*/*/**/*") if path.is_file() and path.name != "MANIFEST"]
    path = data.draw(st.sampled_from(sorted(files)))
    content = path.read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    damage = data.draw(st.sampled_from(["a bit", "cut off", "deleted"]))
    try:
        match damage:
            case "a bit":
                path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
            case "cut off":
                path.write_bytes(content[:place])
            case "deleted":
                path.unlink()
        (finding,) = verified(store).wrong
        within = path.relative_to(store.directory)
        named = str(within) if within.parts[0] == "iterations" else "/".join(within.parts[2:])
        assert finding.where.startswith("/".join(within.parts[:2])) and named in str(finding)
        assert ("missing" if damage == "deleted" else "sha256") in finding.what
    finally:
        path.write_bytes(content)


def test_a_line_that_is_no_json_is_named_with_what_is_missed(store: RunStore) -> None:
    edit_lines(store.directory / "ledger.jsonl", lambda lines: lines.__setitem__(0, "{half"))
    wrong = verified(store).wrong
    assert [finding.where for finding in wrong if finding.group == "ledger"] == ["ledger.jsonl:1"]
    assert "Invalid JSON" in wrong[0].what


def test_a_line_that_is_no_entry_is_named_by_its_field(store: RunStore) -> None:
    at = line_of(store, 4, "evaluate")

    def retype(lines: list[str]) -> None:
        lines[at] = json.dumps({**json.loads(lines[at]), "policy_version": "four"})

    edit_lines(store.directory / "ledger.jsonl", retype)
    (finding,) = verified(store).wrong
    assert finding.where == f"ledger.jsonl:{at + 1}" and "policy_version" in finding.what


@pytest.mark.parametrize("file", ["ledger.jsonl", "metrics.jsonl", "pruned.jsonl"])
def test_half_a_last_line_is_harmless(store: RunStore, file: str) -> None:
    with (store.directory / file).open("a") as lines:
        lines.write('{"iteration": 5, "sta')
    finding = only_finding(store)
    assert finding.harmless and finding.where.startswith(f"{file}:") and "21 bytes" in finding.what
    assert verified(store).summary.endswith("nothing wrong")


def test_an_unknown_stage_and_an_unknown_schema_are_named_with_those_there_are(store: RunStore) -> None:
    rerecord(store, 4, "evaluate", stage="evaluation")
    ref = store.write_batch(4, "other", batch_of(RolloutBatch), RolloutBatch)
    rerecord(store, 4, "evaluate", output=ref.model_copy(update={"schema_name": "Rollouts"}))
    stage, schema = (finding.what for finding in verified(store).wrong)
    assert "no stage 'evaluation'; there are: sample, generate" in stage
    assert "no schema 'Rollouts'; there are: PromptBatch, RolloutBatch" in schema


def test_a_stage_that_was_computed_again_with_all_after_it_is_not_wrong(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path / "run", 2)
    run.record_all({})
    run.record_iteration(2)
    assert verified(run.store).findings == []


def test_an_update_recorded_again_on_another_batch_after_later_iterations_is_a_contradiction(store: RunStore) -> None:
    at = line_of(store, 2, "update")
    batch = store.ledger()[at].inputs["batch"].model_copy(update={"sha256": "f" * 64})
    rerecord(store, 2, "update", inputs={"batch": batch}, identity="other")
    contradiction, foreign = verified(store).wrong
    assert contradiction.where == "ledger.jsonl:38 (iteration 2, update)"
    assert f"differs from line {at + 1}" in contradiction.what and "after iteration 3" in contradiction.what
    assert "input batch" in foreign.what and "ffffffffffff" in foreign.what


def test_one_identity_with_two_sets_of_inputs_is_a_contradiction(store: RunStore) -> None:
    rerecord(store, 4, "sync", inputs={})
    (finding,) = verified(store).wrong
    assert finding.group == "ledger" and "has the identity of line" in finding.what


def test_a_file_of_an_older_line_is_recognised(store: RunStore) -> None:
    at = line_of(store, 4, "evaluate")
    output = store.ledger()[at].output.model_copy(update={"sha256": "0" * 64})
    rerecord(store, 4, "evaluate", output=output)
    (finding,) = verified(store).wrong
    assert f"which is that of line {at + 1}; line 38 of the ledger has sha256 000000000000…" in finding.what


def test_a_stage_whose_inputs_were_never_recorded_is_a_gap(store: RunStore) -> None:
    at = line_of(store, 2, "advantage")
    edit_lines(store.directory / "ledger.jsonl", lambda lines: lines.pop(at))
    result = verified(store)
    gap, *readers = result.wrong
    assert "has no line of advantage, and update 4 is there" in gap.what
    assert all("input batch (iterations/000002/train.parquet) was never recorded" in reader.what for reader in readers)
    assert len(readers) == 2
    assert [finding.where for finding in result.findings if finding.harmless] == ["iterations/000002/train.parquet"]


def test_a_batch_that_was_recorded_and_breaks_its_schema_is_named_by_column_and_row(store: RunStore) -> None:
    old = store.find(4, "generate")
    assert old is not None
    batch = batch_of(RolloutBatch).with_columns(finish_reason=pl.Series(["stop", "because"]))
    buffer = io.BytesIO()
    batch.write_parquet(buffer)
    replace_output(store, old, buffer.getvalue())
    (finding,) = [finding for finding in verified(store).wrong if finding.group == "outputs"]
    assert "breaks its schema: RolloutBatch.finish_reason" in finding.what and "first: b" in finding.what


def test_a_batch_with_another_number_of_rows_than_recorded_is_named(store: RunStore) -> None:
    entry = store.find(4, "evaluate")
    assert entry is not None
    rerecord(store, 4, "evaluate", output=entry.output.model_copy(update={"rows": 3}))
    assert only_finding(store).what == "has 2 rows, the ledger says 3"


def test_a_report_that_is_not_its_model_is_named_by_its_field(store: RunStore) -> None:
    entry = store.find(4, "checkpoint")
    assert entry is not None
    replace_output(store, entry, b'{"policy_version": 4, "path": "checkpoints/000004", "seconds": 1}')
    assert "no CheckpointReport: cannot be read: bytes: Field required" in only_finding(store).what


def replace_output(store: RunStore, entry: LedgerEntry, content: bytes) -> None:
    """Write it where the output is, and record it as that."""
    store.write_bytes(entry.output.path, content)
    ref: BatchRef = entry.output.model_copy(update={"sha256": hashlib.sha256(content).hexdigest()})
    rerecord(store, entry.iteration, entry.stage, output=ref)


@pytest.mark.parametrize(
    ("lost", "advice"),
    [
        ("iterations/000004/statistics.json", "run the iteration again, which computes it"),
        ("iterations/000001/rollouts.parquet", "the run goes on without it"),
        ("iterations/000002/evaluation.parquet", "report.html does not have it"),
    ],
)
def test_what_a_lost_output_means_is_said(store: RunStore, lost: str, advice: str) -> None:
    (store.directory / lost).unlink()
    assert advice in only_finding(store).advice


def test_a_lost_output_of_the_iteration_under_way_is_computed_again(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path / "run", 2)
    run.record_iteration(1, until="update")
    (run.store.directory / "iterations/000001/rollouts.parquet").unlink()
    (finding,) = verified(run.store).wrong
    assert "go on with the run: it is computed again" in finding.advice


def test_a_lost_train_batch_after_the_newest_checkpoint_is_what_no_trainer_gets_past(store: RunStore) -> None:
    shutil.rmtree(store.directory / "checkpoints/000004")
    (store.directory / "iterations/000003/train.parquet").unlink()
    (store.directory / "iterations/000003/rollouts.parquet").unlink()
    advice = {finding.where: finding.advice for finding in verified(store).wrong}
    assert "past version 2" in advice["iterations/000003/train.parquet (iteration 3, advantage)"]
    assert "from checkpoints/000002, no trainer can be restored past version 2" in advice["checkpoints/000004"]


def test_a_damaged_newest_checkpoint_is_named_by_file_with_where_the_run_goes_on_from(store: RunStore) -> None:
    (store.directory / "checkpoints/000004/megatron/weights").write_bytes(b"else")
    finding = only_finding(store)
    assert finding.where == "checkpoints/000004"
    assert re.fullmatch(r"megatron/weights has sha256 \w{64}, MANIFEST says \w{64}", finding.what)
    assert "goes on from checkpoints/000002, and applies the 2 recorded batches after it" in finding.advice


@pytest.mark.parametrize(("content", "says"), [(None, "has no MANIFEST"), (b"[1", "Invalid JSON"), (b"[]", "object")])
def test_a_checkpoint_without_a_readable_manifest_is_named(store: RunStore, content: bytes | None, says: str) -> None:
    manifest = store.directory / "checkpoints/000002/MANIFEST"
    manifest.unlink() if content is None else manifest.write_bytes(content)
    finding = only_finding(store)
    assert finding.where == "checkpoints/000002" and says in finding.what
    assert "a newer one is good" in finding.advice


def test_rows_of_metrics_and_iterations_of_the_ledger_are_held_against_each_other(store: RunStore) -> None:
    def change(lines: list[str]) -> None:
        lines[2:3] = ['{"iteration": 1}', '{"iteration": 7}', '{"iteration": "8"}']

    edit_lines(store.directory / "metrics.jsonl", change)
    found = {finding.where: finding.what for finding in verified(store).wrong}
    assert found.keys() == {
        "metrics.jsonl:5",
        "metrics.jsonl:3 (iteration 1)",
        "metrics.jsonl:4 (iteration 7)",
        "metrics.jsonl (iteration 2)",
    }
    assert "line 2 is of the same iteration" in found["metrics.jsonl:3 (iteration 1)"]
    assert "whole number" in found["metrics.jsonl:5"]


@pytest.mark.parametrize(
    "left",
    [
        "iterations/000003/.rollouts.parquet-ab12cd_9",
        ".ledger.jsonl-abcdefgh",
        "checkpoints/.saving/weights",
        "checkpoints/.000002.replaced/weights",
        "rlvr-0123456789abcdef/weights.safetensors",
        "iterations/000005/rollouts.parquet",
    ],
)
def test_what_an_interrupted_write_left_is_harmless(store: RunStore, left: str) -> None:
    path = store.directory / left
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"half")
    finding = only_finding(store)
    assert finding.harmless and left.startswith(finding.where)


def test_the_schedulers_files_are_read_and_damage_to_them_is_named(store: RunStore) -> None:
    state = State(settings="s", version=2, handed_over={"all": 4}, open=[])
    store.write_bytes("iterations/000003/journal.jsonl", state.model_dump_json().encode() + b"\n")
    assert not verified(store).findings
    store.write_bytes("iterations/000003/journal.jsonl", state.model_dump_json().encode() + b'\n{"kind": "taken"}\n')
    store.write_bytes("iterations/000003/schedule.json", b'{"iteration": 3}')
    found = {finding.where: finding.what for finding in verified(store).wrong}
    assert found.keys() == {"iterations/000003/journal.jsonl:2", "iterations/000003/schedule.json"}
    assert "prompt_ids: Field required" in found["iterations/000003/journal.jsonl:2"]


def test_a_configuration_that_is_none_is_named_and_the_rest_still_verified(store: RunStore) -> None:
    (store.directory / "config.yaml").write_text("run: x\nitertions: 4\n")
    (store.directory / "run-id").unlink()
    result = verified(store)
    assert [finding.where for finding in result.wrong] == ["run-id", "config.yaml"]
    assert result.outputs == 37
