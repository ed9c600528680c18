"""Trees to tensors."""

from __future__ import annotations

import polars as pl
import pytest
import torch

from rlcore.trainer.microbatches import MicroBatch, collate, per_token
from rlcore.trainer.packing import RowLengths, grow_trees

BATCH = pl.DataFrame(
    {
        "sample_id": ["a", "b", "c", "d"],
        "prompt_ids": [[1, 2, 3], [4], [], [1, 2, 3]],
        "response_ids": [[5, 6], [7, 8, 9], [1], [8]],
        "loss_mask": [[True, False], [True, True, True], [True], [True]],
        "advantages": [[0.5, 0.25], [1.0, 2.0, 3.0], [0.0], [4.0]],
        "ref_logprobs": [[-1.0, -2.0], None, [-3.0], [-4.0]],
    },
    schema_overrides={"advantages": pl.List(pl.Float32), "ref_logprobs": pl.List(pl.Float32)},
)


def collated(rows: list[int], share_prompts: bool = True) -> MicroBatch:
    return collate(BATCH, grow_trees(rows, RowLengths.of(BATCH), share_prompts=share_prompts, limit=100))


def test_responses_to_one_prompt_follow_it_and_their_last_tokens_are_left_out() -> None:
    micro = collated([1, 0, 3])
    assert micro.rows == [1, 0, 3]
    assert micro.input_ids.tolist() == [[4, 7, 8, 1, 2, 3, 5]]
    assert micro.positions.tolist() == [[0, 1, 2, 0, 1, 2, 3]]
    assert micro.layout.tolist() == [[0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 0, 0, 0, 1]]
    assert micro.labels.tolist() == [7, 8, 9, 5, 6, 8]
    # The end of the prompt of `a` and `d` predicts the first token of both.
    assert micro.scored.tolist() == [0, 1, 2, 5, 6, 5]
    assert micro.response_mask.tolist() == [[True, True, True], [True, True, False], [True, False, False]]


def test_positions_of_each_response_go_on_from_the_prompt() -> None:
    batch = pl.DataFrame({"sample_id": ["a", "b"], "prompt_ids": [[1, 2]] * 2, "response_ids": [[3, 4, 5], [6, 7, 8]]})
    micro = collate(batch, grow_trees([0, 1], RowLengths.of(batch), share_prompts=True, limit=100))
    assert micro.input_ids.tolist() == [[1, 2, 3, 4, 6, 7]]
    assert micro.positions.tolist() == [[0, 1, 2, 3, 2, 3]]
    assert micro.scored.tolist() == [1, 2, 3, 1, 4, 5]


def test_without_sharing_every_row_has_its_prompt() -> None:
    micro = collated([0, 3], share_prompts=False)
    assert micro.input_ids.tolist() == [[1, 2, 3, 5, 1, 2, 3]]
    assert micro.layout.tolist() == [[0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 0, 0, 0]]


def test_scored_values_and_columns_are_aligned_alike() -> None:
    micro = collated([0, 1])
    advantages = per_token(BATCH, "advantages", micro)
    assert advantages.tolist() == [[0.5, 0.25, 0.0], [1.0, 2.0, 3.0]]
    assert advantages.dtype == torch.float32
    assert per_token(BATCH, "loss_mask", micro).tolist() == [[True, False, False], [True, True, True]]
    assert micro.align(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])).tolist() == [[1.0, 2.0, 0.0], [3.0, 4.0, 5.0]]


def test_an_empty_prompt_is_named() -> None:
    with pytest.raises(ValueError, match="prompt_ids of c is empty"):
        collated([0, 2])


def test_a_column_that_is_null_is_named() -> None:
    assert per_token(BATCH, "ref_logprobs", collated([0])).tolist() == [[-1.0, -2.0]]
    with pytest.raises(ValueError, match="ref_logprobs of b is null"):
        per_token(BATCH, "ref_logprobs", collated([0, 1]))
