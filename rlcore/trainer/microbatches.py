"""From the rows of a batch to padded tensors within a token budget. Pure functions.

Rows are padded on the right: with a causal mask nothing that counts ever attends to padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """B rows as the model reads them. S is the longest prompt + response minus 1, T the longest response.

    The scored positions of `scored` and the tokens of `response_mask` are the same tokens in the same order.
    """

    rows: list[int]
    """Positions in the batch."""
    input_ids: Tensor
    """(B, S) int64: prompt and response. The last token of the longest row is left out: it predicts nothing."""
    next_ids: Tensor
    """(B, S) int64: the token after each position."""
    scored: Tensor
    """(B, S) bool: the next token is a response token."""
    response_mask: Tensor
    """(B, T) bool: the row has a response token here."""

    def align(self, values: Tensor) -> Tensor:
        """(N,) values of the scored positions as a response-aligned (B, T), 0 where there is no token."""
        aligned = values.new_zeros(self.response_mask.shape)
        aligned[self.response_mask] = values
        return aligned

    def to(self, device: torch.device) -> MicroBatch:
        tensors = (self.input_ids, self.next_ids, self.scored, self.response_mask)
        return MicroBatch(self.rows, *(tensor.to(device) for tensor in tensors))


def row_lengths(batch: pl.DataFrame) -> list[int]:
    """Tokens of prompt and response of each row."""
    return (batch["prompt_ids"].list.len() + batch["response_ids"].list.len()).to_list()


def shard(rows: Sequence[int], lengths: Sequence[int], rank: int, world_size: int) -> list[int]:
    """The rows of one data-parallel rank: dealt out in order of length, so that all ranks get the same work.

    `lengths` is indexed by row. Result in the order of `rows`.
    """
    dealt = set(_by_length(rows, lengths)[rank::world_size])
    return [row for row in rows if row in dealt]


def split_by_tokens(rows: Sequence[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Micro-batches of at most `budget` tokens, padding included; rows of like length stand together.

    A row is never split: one longer than the budget is a micro-batch of its own.
    """
    splits: list[list[int]] = []
    for row in _by_length(rows, lengths):
        # Ascending order: this row's length is what all rows of its micro-batch are padded to.
        if splits and lengths[row] * (len(splits[-1]) + 1) <= budget:
            splits[-1].append(row)
        else:
            splits.append([row])
    return splits


def collate(batch: pl.DataFrame, rows: Sequence[int]) -> MicroBatch:
    """Tensors of the given rows; each has at least one prompt and one response token.

    Raises:
        ValueError: a prompt or response of these rows is empty.
    """
    chosen = batch[list(rows)]
    prompts, responses = _lengths(chosen["prompt_ids"]), _lengths(chosen["response_ids"])
    for name, lengths in (("prompt_ids", prompts), ("response_ids", responses)):
        if bool((lengths == 0).any()):
            empty = chosen["sample_id"][int((lengths == 0).nonzero()[0])]
            raise ValueError(f"{name} of {empty} is empty; a row has at least one prompt and one response token")
    ends = prompts + responses
    positions = torch.arange(int(ends.max()))
    tokens = torch.zeros(len(rows), len(positions), dtype=torch.int64)
    tokens[positions < prompts[:, None]] = _flat(chosen["prompt_ids"]).long()
    in_response = (positions >= prompts[:, None]) & (positions < ends[:, None])
    tokens[in_response] = _flat(chosen["response_ids"]).long()
    return MicroBatch(
        rows=list(rows),
        input_ids=tokens[:, :-1],
        next_ids=tokens[:, 1:],
        scored=in_response[:, 1:],
        response_mask=torch.arange(int(responses.max())) < responses[:, None],
    )


def per_token(batch: pl.DataFrame, column: str, micro: MicroBatch) -> Tensor:
    """A per-token column of the micro-batch's rows, (B, T), 0 where there is no token.

    Raises:
        ValueError: the column is null in one of these rows.
    """
    values = batch[column][micro.rows]
    if values.null_count():
        sample = batch["sample_id"][micro.rows].filter(values.is_null())[0]
        raise ValueError(f"{column} of {sample} is null, but this update reads it")
    return micro.align(_flat(values).to(micro.response_mask.device))


def _by_length(rows: Sequence[int], lengths: Sequence[int]) -> list[int]:
    return sorted(rows, key=lambda row: (lengths[row], row))


def _lengths(lists: pl.Series) -> Tensor:
    return torch.from_numpy(lists.list.len().cast(pl.Int64).to_numpy(writable=True))


def _flat(lists: pl.Series) -> Tensor:
    """All elements, row after row. No list is empty (`explode` would make a null of it)."""
    return torch.from_numpy(lists.explode().to_numpy(writable=True))
