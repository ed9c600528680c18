"""Which rows stand in one sequence, and which sequences in one micro-batch. Pure functions of lengths.

A tree is the training sequence [prompt, response, response, …]: every response sees the prompt and itself, and no
other. The last token of a response predicts nothing and is left out.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True, slots=True)
class Tree:
    """Rows with the same prompt, by their positions in the batch."""

    rows: tuple[int, ...]
    tokens: int
    """Of the sequence: P + Σ (T − 1) for a prompt of P and responses of T tokens."""


@dataclass(frozen=True, slots=True)
class RowLengths:
    """Tokens of each row of a batch, and which rows have the same prompt."""

    prompts: list[int]
    responses: list[int]
    prompt_of: list[int]
    """Number of the row's prompt, in order of appearance."""

    @classmethod
    def of(cls, batch: pl.DataFrame) -> RowLengths:
        """Of a frame with prompt_ids and response_ids."""
        numbers: dict[bytes, int] = {}
        prompt_of = [numbers.setdefault(ids.to_numpy().tobytes(), len(numbers)) for ids in batch["prompt_ids"]]
        return cls(batch["prompt_ids"].list.len().to_list(), batch["response_ids"].list.len().to_list(), prompt_of)

    def total(self, rows: Iterable[int]) -> int:
        """Tokens of prompts and responses, a shared prompt counted for each of its rows."""
        return sum(self.prompts[row] + self.responses[row] for row in rows)


def grow_trees(rows: Sequence[int], lengths: RowLengths, *, share_prompts: bool, limit: int) -> list[Tree]:
    """Trees that hold each row once, none over `limit` tokens unless it is of one row.

    Rows of one prompt fill as few trees as they can in their order. Without `share_prompts` each row is a tree.
    """
    trees: list[Tree] = []
    growing: dict[int, int] = {}
    """Place in `trees` of the prompt's newest."""
    for row in rows:
        prompt, branch = lengths.prompts[row], lengths.responses[row] - 1
        place = growing.get(lengths.prompt_of[row])
        if share_prompts and place is not None and trees[place].tokens + branch <= limit:
            trees[place] = Tree((*trees[place].rows, row), trees[place].tokens + branch)
        else:
            growing[lengths.prompt_of[row]] = len(trees)
            trees.append(Tree((row,), prompt + branch))
    return trees


def deal(trees: Sequence[Tree], ranks: int) -> list[list[Tree]]:
    """Each rank's trees: the largest first, each to the rank that has the fewest tokens so far."""
    dealt: list[list[Tree]] = [[] for _ in range(ranks)]
    loads = [(0, rank) for rank in range(ranks)]
    for tree in _largest_first(trees):
        tokens, rank = loads[0]
        dealt[rank].append(tree)
        heapq.heapreplace(loads, (tokens + tree.tokens, rank))
    return dealt


def fill_micro_batches(trees: Sequence[Tree], budget: int) -> list[list[Tree]]:
    """Micro-batches of at most `budget` tokens: the largest tree first, each into the first that has room for it.

    A tree is never divided: one over the budget is a micro-batch of its own.
    """
    filled: list[list[Tree]] = []
    room: list[int] = []
    for tree in _largest_first(trees):
        place = next((place for place, free in enumerate(room) if tree.tokens <= free), None)
        if place is None:
            filled.append([tree])
            room.append(budget - tree.tokens)
        else:
            filled[place].append(tree)
            room[place] -= tree.tokens
    return filled


@dataclass(frozen=True, slots=True)
class Packed:
    """The trees of one micro-batch."""

    trees: list[Tree]
    counts: bool
    """False: it only makes the ranks' numbers of micro-batches equal."""


def pack(
    rows: Sequence[int],
    lengths: RowLengths,
    *,
    share_prompts: bool,
    budget: int,
    rank: int,
    ranks: int,
    number_of: int | None = None,
) -> list[Packed]:
    """The micro-batches of one data-parallel rank. All ranks together hold each row once.

    Args:
        number_of: all ranks have the same number of micro-batches, a multiple of this one; None: as many as they need.
    """
    limit = budget
    if ranks > 1:
        # A batch of few prompts has work for all ranks too.
        limit = min(budget, -(-lengths.total(rows) // ranks))
    trees = grow_trees(rows, lengths, share_prompts=share_prompts, limit=limit)
    by_rank = [fill_micro_batches(dealt, budget) for dealt in deal(trees, ranks)]
    packed = [Packed(filled, counts=True) for filled in by_rank[rank]]
    if number_of is not None:
        number = -(-max(map(len, by_rank)) // number_of) * number_of
        packed += [Packed([trees[0]], counts=False) for _ in range(number - len(packed))]
    return packed


def _largest_first(trees: Sequence[Tree]) -> list[Tree]:
    return sorted(trees, key=lambda tree: (-tree.tokens, tree.rows))
