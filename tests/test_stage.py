"""A finished stage is read back, not repeated; anything that decides its output makes it run again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from prefect.client.schemas.objects import State

from rlcore.batches import LogprobBatch
from rlcore.compose import compose
from rlcore.iteration import Iteration
from rlcore.plan import INPUTS, READS, is_repeated
from rlcore.store import BatchRef, RunStore, StoreError
from tasks.stage import identity_of, stage
from tests.entries import ledger_entry

CALLS: list[str] = []
OFFSET = 0.0


@stage(reads=("seed",), writes=LogprobBatch, to="source")
def source(iteration: Iteration) -> pl.DataFrame:
    CALLS.append("source")
    logprobs = pl.Series([[-1.0 - iteration.config.seed - OFFSET]], dtype=pl.List(pl.Float32))
    return pl.DataFrame({"sample_id": ["a"], "logprobs": logprobs})


@stage(reads=("rollout.temperature",), writes=LogprobBatch, to="doubled")
def doubled(iteration: Iteration, batch: pl.DataFrame, other: pl.DataFrame | None = None) -> pl.DataFrame:
    CALLS.append("doubled")
    if iteration.number == 13:
        raise ValueError("unlucky")
    return batch.with_columns(logprobs=pl.col("logprobs").list.eval(pl.element() * 2))


@pytest.fixture
def run(tmp_path: Path) -> Any:
    CALLS.clear()

    def iteration(number: int, *overrides: str) -> Iteration:
        return Iteration(compose("arithmetic", overrides), RunStore(str(tmp_path)), number)

    return iteration


def test_a_finished_stage_comes_back_as_cached_and_does_not_run(run: Any) -> None:
    first = source.fn(run(1))
    again = source.fn(run(1))
    assert CALLS == ["source"]
    assert isinstance(first, BatchRef)
    assert isinstance(again, State) and again.name == "Cached" and again.data == first


def test_another_iteration_is_another_stage(run: Any) -> None:
    source.fn(run(1))
    source.fn(run(2))
    assert CALLS == ["source", "source"]


def test_a_changed_setting_that_the_stage_reads_makes_it_run_again(run: Any) -> None:
    source.fn(run(1))
    source.fn(run(1, "seed=1"))
    assert CALLS == ["source", "source"]


def test_a_changed_setting_that_the_stage_does_not_read_does_not(run: Any) -> None:
    source.fn(run(1))
    source.fn(run(1, "rollout.temperature=0.5"))
    assert CALLS == ["source"]


def test_an_update_stays_done_under_another_layout_and_is_another_one_under_another_rate(run: Any) -> None:
    """A retry after the update, with less memory for a micro-batch, applies it no second time."""
    before, divided, slower = (
        identity_of(run(1, *overrides), "update", {}, READS["update"])
        for overrides in (
            [],
            ["trainer.max_tokens_per_micro_batch=64", "trainer.world_size=2"],
            ["trainer.learning_rate=1"],
        )
    )
    assert before == divided != slower


def test_another_input_makes_a_stage_run_again(run: Any) -> None:
    doubled.fn(run(1), batch=source.fn(run(1)))
    doubled.fn(run(1), batch=source.fn(run(1, "seed=1")))
    assert CALLS == ["source", "doubled"] * 2


@pytest.mark.parametrize("harm", ["flip a bit", "truncate", "delete"])
def test_a_lost_or_damaged_output_is_computed_again_with_what_depends_on_it_and_said(
    run: Any, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    iteration = run(1)
    ref = source.fn(iteration)
    before = doubled.fn(iteration, batch=ref)
    damage(iteration, ref, harm)
    with unlike_before():
        again = source.fn(iteration)
        after = doubled.fn(iteration, batch=again)
    assert CALLS == ["source", "doubled", "source", "doubled"]
    assert again.sha256 != ref.sha256 and after.sha256 != before.sha256
    assert iteration.store.is_intact(again) and iteration.store.is_intact(after)
    (said,) = caplog.messages
    assert "iterations/000001/source.parquet is " in said and "stage source is computed again" in said


def test_what_an_applied_update_is_built_on_is_not_replaced_by_another_batch(
    run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The trainer would refuse the batch that came of it, in every retry."""
    iteration = run(1)
    ref = source.fn(iteration)
    before = doubled.fn(iteration, batch=ref)
    iteration.store.record(ledger_entry(1, "update"))
    damage(iteration, ref, "truncate")
    with unlike_before():
        again = source.fn(iteration)
        after = doubled.fn(iteration, batch=again.data)
    assert CALLS == ["source", "doubled"]
    assert (again.data, after.data) == (ref, before)
    (said,) = caplog.messages
    assert "source.parquet is damaged" in said and "not computed again, as update 1 was applied" in said


def test_after_the_update_what_comes_out_the_same_is_computed_again_and_so_is_what_follows_it(run: Any) -> None:
    assert not is_repeated("generate", updated=True)
    assert all(is_repeated(stage, updated=True) for stage in ("sample", "advantage", "statistics", "sync", "evaluate"))
    assert all(is_repeated(stage, updated=False) for stage in INPUTS)


def damage(iteration: Iteration, ref: BatchRef, harm: str) -> None:
    content = bytearray(iteration.store.read_bytes(ref.path))
    if harm == "delete":
        (iteration.store.directory / ref.path).unlink()
        return
    content[len(content) // 2] ^= 1
    iteration.store.write_bytes(ref.path, bytes(content[:-10] if harm == "truncate" else content))


@contextmanager
def unlike_before() -> Iterator[None]:
    """The stage `source` puts out something else, as one that samples would."""
    global OFFSET
    OFFSET = 1.0
    try:
        yield
    finally:
        OFFSET = 0.0


def test_the_ledger_has_the_inputs_and_the_seconds_of_a_stage(run: Any) -> None:
    iteration = run(3)
    ref = source.fn(iteration)
    doubled.fn(iteration, batch=ref)
    entry = iteration.store.find(3, "doubled")
    assert entry.inputs == {"batch": ref}
    assert entry.output.path == "iterations/000003/doubled.parquet"
    assert 0 <= entry.engine_seconds <= entry.seconds <= entry.finished_at - entry.started_at + 0.1
    assert iteration.store.read_batch(entry.output)["logprobs"].to_list() == [[-2.0]]


def test_an_input_that_the_plan_has_no_stage_for_is_left_out(run: Any) -> None:
    iteration = run(1)
    doubled.fn(iteration, batch=source.fn(iteration), other=None)
    assert iteration.store.find(1, "doubled").inputs.keys() == {"batch"}


def test_a_damaged_input_stops_the_stage_and_says_which_file(run: Any) -> None:
    iteration = run(1)
    ref = source.fn(iteration)
    iteration.store.write_bytes(ref.path, b"not parquet")
    with pytest.raises(StoreError, match=r"source\.parquet is damaged"):
        doubled.fn(iteration, batch=ref)
    assert iteration.store.find(1, "doubled") is None


def test_a_failure_says_in_which_stage_and_iteration(run: Any) -> None:
    iteration = run(13)
    with pytest.raises(ValueError, match="unlucky") as failure:
        doubled.fn(iteration, batch=source.fn(iteration))
    assert failure.value.__notes__ == ["stage doubled, iteration 13"]
