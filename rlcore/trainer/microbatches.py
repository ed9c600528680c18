"""From the rows of a batch to the tensors that the model reads, and from its outputs back to rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
import torch
from torch import Tensor

from rlcore.trainer.packing import Tree


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Trees one after the other in a sequence of S tokens without padding; B rows, of at most T response tokens.

    The N scored tokens, and those of `response_mask`, are the response tokens row after row.
    """

    rows: list[int]
    """Positions in the batch."""
    input_ids: Tensor
    """(1, S) int64."""
    positions: Tensor
    """(1, S) int64: place in prompt and response. Every response of a tree goes on from the prompt."""
    layout: Tensor
    """(2, S) int64: number of the token's tree, and of its branch there: 0 the prompt, then the responses."""
    scored: Tensor
    """(N,) int64: the place in S whose output predicts a response token. A tree's first ones have the same place."""
    labels: Tensor
    """(N,) int64: the response tokens."""
    response_mask: Tensor
    """(B, T) bool: the row has a response token here."""

    def align(self, values: Tensor) -> Tensor:
        """(N,) values of the scored tokens as a response-aligned (B, T), 0 where there is no token."""
        aligned = values.new_zeros(self.response_mask.shape)
        aligned[self.response_mask] = values
        return aligned

    def to(self, device: torch.device) -> MicroBatch:
        tensors = (self.input_ids, self.positions, self.layout, self.scored, self.labels, self.response_mask)
        return MicroBatch(self.rows, *(tensor.to(device) for tensor in tensors))


def collate(batch: pl.DataFrame, trees: Sequence[Tree]) -> MicroBatch:
    """Tensors of the given trees; each row has at least one prompt and one response token.

    Raises:
        ValueError: a prompt or response of these rows is empty.
    """
    rows = [row for tree in trees for row in tree.rows]
    for name in ("prompt_ids", "response_ids"):
        empty = batch["sample_id"][rows].filter(batch[name][rows].list.len() == 0)
        if len(empty):
            raise ValueError(f"{name} of {empty[0]} is empty; a row has at least one prompt and one response token")
    tokens, positions, numbers, branches, scored, labels = [], [], [], [], [], []
    end = 0
    for number, tree in enumerate(trees):
        prompt = _tensor(batch["prompt_ids"][tree.rows[0]])
        last = end + len(prompt) - 1
        pieces = [prompt]
        for row in tree.rows:
            response = _tensor(batch["response_ids"][row])
            start = end + sum(map(len, pieces))
            scored.append(torch.tensor([last, *range(start, start + len(response) - 1)]))
            labels.append(response)
            pieces.append(response[:-1])
        for branch, piece in enumerate(pieces):
            first = len(prompt) if branch else 0
            positions.append(torch.arange(first, first + len(piece)))
            branches.append(torch.full((len(piece),), branch))
        tokens += pieces
        numbers.append(torch.full((tree.tokens,), number))
        end += tree.tokens
    lengths = torch.tensor([len(response) for response in labels])
    return MicroBatch(
        rows=rows,
        input_ids=torch.cat(tokens)[None],
        positions=torch.cat(positions)[None],
        layout=torch.stack([torch.cat(numbers), torch.cat(branches)]),
        scored=torch.cat(scored),
        labels=torch.cat(labels),
        response_mask=torch.arange(int(lengths.max())) < lengths[:, None],
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
    # No list is empty: `explode` would make a null of it.
    flat = torch.from_numpy(values.explode().to_numpy(writable=True))
    return micro.align(flat.to(micro.response_mask.device))


def _tensor(ids: pl.Series) -> Tensor:
    return torch.from_numpy(ids.to_numpy(writable=True)).long()
