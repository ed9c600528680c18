"""Attention inside the trees of a packed sequence, all trees at once: each padded to the longest of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

LONGEST_EXPLICIT = 1024
"""Longest tree, in tokens, whose attention weights a CPU writes out: up to there two matrix products are faster than
torch's fused kernel, beyond it they are not, and their memory is quadratic."""

WASTE = 1.5
"""Pairs of query and key with padding for each without, up to which one product is less work than one for each tree."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Where the S tokens of T trees stand in T blocks of L slots."""

    slots: Tensor
    """(T·L,) int64: the token in each slot; any where there is none."""
    filled: Tensor
    """(T·L, 1) bool: there is one."""
    places: Tensor
    """(S,) int64: the slot of each token."""
    bias: Tensor
    """(T · groups, heads of a group · L, L): 0 where the query sees the key, else −inf."""


@dataclass(frozen=True, slots=True, eq=False)
class SameMemory:
    """A tensor that nobody writes to, as a key: two are equal that are in the same place. It holds on to the place."""

    tensor: Tensor

    def __hash__(self) -> int:
        return hash(self.tensor.data_ptr())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameMemory) and self.tensor.data_ptr() == other.tensor.data_ptr()


@lru_cache(maxsize=8)
def placed(layout: SameMemory, groups: int, heads: int, dtype: torch.dtype) -> Blocks | None:
    """`place`, once for all layers of a pass. A pipeline has several micro-batches under way."""
    return place(layout.tensor, groups, heads, dtype)


def place(layout: Tensor, groups: int, heads: int, dtype: torch.dtype) -> Blocks | None:
    """The blocks of a layout (2, S) for `heads` heads in each of `groups`.

    None where a tree is too long for them, or the trees' lengths are too unlike.
    """
    numbers, branches = layout
    lengths = torch.unique_consecutive(numbers, return_counts=True)[1]
    trees, longest = len(lengths), int(lengths.max())
    if longest > LONGEST_EXPLICIT or trees * longest**2 > WASTE * float(lengths.square().sum()):
        return None
    filled = torch.arange(longest) < lengths[:, None]
    places = filled.flatten().nonzero()[:, 0]
    slots = torch.zeros(trees * longest, dtype=torch.int64)
    slots[places] = torch.arange(len(numbers))
    # What stands behind a tree is seen by none of its tokens, but sees some: no row of the mask is empty.
    seen = torch.stack([tree_mask(block) for block in branches[slots].view(trees, longest)])
    bias = torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, float("-inf"))
    return Blocks(
        slots=slots,
        filled=filled.view(-1, 1),
        places=places,
        bias=bias[:, None, None].expand(-1, groups, heads, -1, -1).reshape(trees * groups, heads * longest, longest),
    )


def tree_mask(branches: Tensor) -> Tensor:
    """(L, L) bool: which keys each query of a tree sees, from its (L,) branches: earlier ones of prompt and own branch.

    Branch 0 is the prompt.
    """
    same = (branches[:, None] == branches[None, :]) | (branches[None, :] == 0)
    return same.tril()


def attend_blocks(query: Tensor, key: Tensor, value: Tensor, blocks: Blocks, scale: float) -> Tensor:
    """softmax(scale·q·kᵀ) v inside the trees.

    Args:
        query: (S, heads, D).
        key, value: (S, groups, D); each group of keys serves heads / groups heads in a row.

    Returns:
        (S, heads, D).
    """
    count, groups, size = key.shape[0], key.shape[1], key.shape[2]
    trees = blocks.bias.shape[0] // groups
    query, key, value = (
        _Rearrange.apply(heads.reshape(count, -1), blocks.slots, blocks.places, None).view(
            trees, -1, groups, width, size
        )
        for heads, width in ((query, query.shape[1] // groups), (key, 1), (value, 1))
    )
    query, key, value = (
        heads.permute(0, 2, 3, 1, 4).reshape(trees * groups, -1, size) for heads in (query, key, value)
    )
    attended = weigh(query, key, value, blocks.bias, scale)
    by_token = attended.view(trees, groups, -1, key.shape[1], size).permute(0, 3, 1, 2, 4)
    back: Tensor = _Rearrange.apply(by_token.flatten(0, 1).flatten(1), blocks.places, blocks.slots, blocks.filled)
    return back.view(count, -1, size)


def weigh(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float) -> Tensor:
    """softmax(scale·q·kᵀ + bias) v of (N, Q, D) queries, (N, K, D) keys and values, and a bias that is added."""
    return torch.bmm(torch.baddbmm(bias, query, key.transpose(1, 2), alpha=scale).softmax(-1), value)


class _Rearrange(torch.autograd.Function):
    """Rows of a matrix at given places. The gradient goes back by a selection too: no row that counts is there twice.

    `back` is where each row of the input went; where that is nowhere, `counts` is false.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, there: Tensor, back: Tensor, counts: Tensor | None) -> Tensor:
        ctx.back, ctx.counts = back, counts
        return rows.index_select(0, there)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        returned = gradients[0].index_select(0, ctx.back)
        if ctx.counts is not None:
            returned.mul_(ctx.counts)
        return returned, None, None, None
