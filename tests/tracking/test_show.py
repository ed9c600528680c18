"""Batches printed for people."""

from __future__ import annotations

import io
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

from rlcore.batches import LogprobBatch
from rlcore.store import RunStore, StoreError
from rlcore.tracking.show import show_output
from tests.entries import ledger_entry


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    store = RunStore(str(tmp_path))
    logprobs = pl.Series([[-1.0, -2.0], [-0.5]], dtype=pl.List(pl.Float32))
    ref = store.write_batch(
        3, "ref_logprobs", pl.DataFrame({"sample_id": ["a#0", "a#1"], "logprobs": logprobs}), LogprobBatch
    )
    store.record(ledger_entry(3, "ref_logprob", ref))
    return store


def shown(store: RunStore, iteration: int, stage: str, sample: str | None = None) -> str:
    output = io.StringIO()
    show_output(store, iteration, stage, sample, Console(file=output, width=100))
    return output.getvalue()


def test_a_batch_is_shown_with_its_rows_and_the_length_and_mean_of_lists(store: RunStore) -> None:
    text = shown(store, 3, "ref_logprob")
    assert "2 rows" in text
    assert "a#0" in text and "2: ⌀ -1.5" in text
    assert "a#1" in text and "1: ⌀ -0.5" in text


def test_one_sample_is_shown_in_full(store: RunStore) -> None:
    text = shown(store, 3, "ref_logprob", "a#0")
    assert "[-1.0, -2.0]" in text and "a#1" not in text


def test_a_missing_stage_names_those_that_are_there(store: RunStore) -> None:
    with pytest.raises(StoreError, match=r"no output of 'reward'; it has ref_logprob, and the newest iteration is 3"):
        shown(store, 3, "reward")


def test_a_missing_sample_names_some_that_are_there(store: RunStore) -> None:
    with pytest.raises(StoreError, match=r"no sample_id 'b'; its first ones: a#0, a#1"):
        shown(store, 3, "ref_logprob", "b")
