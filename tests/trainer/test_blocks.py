"""Attention in padded blocks is attention over whole trees."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlcore.trainer.attention import attend
from rlcore.trainer.blocks import SameMemory, attend_blocks, place, placed, tree_mask

GROUPS, SHARED, SIZE = 2, 3, 8

trees = st.lists(st.tuples(st.integers(1, 7), st.lists(st.integers(0, 6), max_size=4)), min_size=1, max_size=4)
"""Of each tree the prompt's length, and its branches'."""


def layout_of(shape: list[tuple[int, list[int]]]) -> Tensor:
    tokens = [
        (tree, branch)
        for tree, (prompt, branches) in enumerate(shape)
        for branch, length in enumerate([prompt, *branches])
        for _ in range(length)
    ]
    return torch.tensor(tokens).T.contiguous()


def heads(length: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = (GROUPS * SHARED, GROUPS, GROUPS)
    query, key, value = (torch.randn(length, count, SIZE, generator=generator).requires_grad_() for count in sizes)
    return query, key, value


def by_tree(query: Tensor, key: Tensor, value: Tensor, layout: Tensor) -> Tensor:
    lengths = torch.unique_consecutive(layout[0], return_counts=True)[1].tolist()
    attended = []
    for query_part, key_part, value_part, tree in zip(
        *(rows.split(lengths) for rows in (query, key, value, layout.T)), strict=True
    ):
        q, k, v = (part.transpose(0, 1) for part in (query_part, key_part, value_part))
        attended.append(attend(q, k, v, tree_mask(tree[:, 1]), SIZE**-0.5).transpose(0, 1))
    return torch.cat(attended)


@settings(deadline=None)
@given(trees, st.integers(0, 9))
def test_blocks_give_the_trees_attention_and_its_gradients(shape: list[tuple[int, list[int]]], seed: int) -> None:
    layout = layout_of(shape)
    blocks = place(layout, GROUPS, SHARED, torch.float32)
    assume(blocks is not None)
    assert blocks is not None
    inputs = heads(layout.shape[1], seed)
    ours, theirs = attend_blocks(*inputs, blocks=blocks, scale=SIZE**-0.5), by_tree(*inputs, layout)
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn(ours.shape, generator=torch.Generator().manual_seed(seed + 1))
    gradients = [torch.autograd.grad((result * weight).sum(), inputs) for result in (ours, theirs)]
    torch.testing.assert_close(gradients[0], gradients[1])


def test_trees_of_like_lengths_are_placed_in_blocks() -> None:
    assert place(layout_of([(40, [23] * 8), (44, [20] * 8)]), GROUPS, SHARED, torch.float32) is not None


@pytest.mark.parametrize("shape", [[(4, [200]), (4, [1] * 3), (3, [1] * 3)], [(1000, [25])]])
def test_trees_of_unlike_lengths_and_long_ones_are_not(shape: list[tuple[int, list[int]]]) -> None:
    assert place(layout_of(shape), GROUPS, SHARED, torch.float32) is None


def test_the_places_are_computed_once_for_a_layout_and_again_for_another_in_its_stead() -> None:
    layout = layout_of([(4, [3, 3])])
    first = placed(SameMemory(layout), GROUPS, SHARED, torch.float32)
    assert placed(SameMemory(layout.detach()), GROUPS, SHARED, torch.float32) is first
    assert placed(SameMemory(layout.clone()), GROUPS, SHARED, torch.float32) is not first
    assert placed(SameMemory(layout), GROUPS, SHARED, torch.bfloat16) is not first
