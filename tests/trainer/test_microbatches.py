"""Rows to micro-batches and tensors."""

from __future__ import annotations

import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlcore.trainer.microbatches import collate, per_token, row_lengths, shard, split_by_tokens

BATCH = pl.DataFrame(
    {
        "sample_id": ["a", "b", "c"],
        "prompt_ids": [[1, 2, 3], [4], []],
        "response_ids": [[5, 6], [7, 8, 9], [1]],
        "loss_mask": [[True, False], [True, True, True], [True]],
        "advantages": [[0.5, 0.25], [1.0, 2.0, 3.0], [0.0]],
        "ref_logprobs": [[-1.0, -2.0], None, [-3.0]],
    },
    schema_overrides={"advantages": pl.List(pl.Float32), "ref_logprobs": pl.List(pl.Float32)},
)
LENGTHS = st.lists(st.integers(1, 50), min_size=1, max_size=40)


@given(LENGTHS, st.integers(1, 200))
def test_splits_hold_every_row_once_and_keep_the_budget(lengths: list[int], budget: int) -> None:
    splits = split_by_tokens(range(len(lengths)), lengths, budget)
    assert sorted(row for split in splits for row in split) == list(range(len(lengths)))
    for split in splits:
        assert len(split) == 1 or len(split) * max(lengths[row] for row in split) <= budget


def test_rows_of_like_length_stand_together() -> None:
    assert split_by_tokens([0, 1, 2, 3], [30, 5, 31, 6], budget=62) == [[1, 3], [0, 2]]


def test_a_row_over_the_budget_stands_alone() -> None:
    assert split_by_tokens([0, 1, 2], [3, 100, 3], budget=10) == [[0, 2], [1]]


@given(LENGTHS, st.integers(1, 5))
def test_shards_divide_the_rows_and_their_number(lengths: list[int], world_size: int) -> None:
    rows = range(len(lengths))
    shards = [shard(rows, lengths, rank, world_size) for rank in range(world_size)]
    assert sorted(row for part in shards for row in part) == list(rows)
    assert all(part == sorted(part) for part in shards)
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_collate_pads_on_the_right_and_scores_the_tokens_of_the_response() -> None:
    batch = BATCH.with_columns(prompt_ids=pl.Series([[1, 2, 3], [4], [5]]))
    micro = collate(batch, [1, 2, 0])
    assert micro.input_ids.tolist() == [[4, 7, 8, 9], [5, 1, 0, 0], [1, 2, 3, 5]]
    assert micro.next_ids[micro.scored].tolist() == [7, 8, 9, 1, 5, 6]
    assert micro.response_mask.tolist() == [[True, True, True], [True, False, False], [True, True, False]]


def test_scored_values_and_columns_are_aligned_alike() -> None:
    micro = collate(BATCH, [0, 1])
    advantages = per_token(BATCH, "advantages", micro)
    assert advantages.tolist() == [[0.5, 0.25, 0.0], [1.0, 2.0, 3.0]]
    assert advantages.dtype == torch.float32
    assert per_token(BATCH, "loss_mask", micro).tolist() == [[True, False, False], [True, True, True]]
    assert micro.align(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])).tolist() == [[1.0, 2.0, 0.0], [3.0, 4.0, 5.0]]


def test_an_empty_prompt_is_named() -> None:
    with pytest.raises(ValueError, match="prompt_ids of c is empty"):
        collate(BATCH, [0, 2])


def test_a_column_that_is_null_is_named() -> None:
    assert per_token(BATCH, "ref_logprobs", collate(BATCH, [0])).tolist() == [[-1.0, -2.0]]
    with pytest.raises(ValueError, match="ref_logprobs of b is null"):
        per_token(BATCH, "ref_logprobs", collate(BATCH, [0, 1]))


def test_lengths_are_of_prompt_and_response() -> None:
    assert row_lengths(BATCH) == [5, 4, 1]
