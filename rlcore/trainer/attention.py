"""Attention inside the trees of a packed sequence, in place of Megatron's core attention."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn import functional

from rlcore.trainer.blocks import LONGEST_EXPLICIT, SameMemory, attend_blocks, placed, tree_mask, weigh
from rlcore.trainer.context import gather_sequence, places


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """softmax(scale·q·kᵀ) v over the keys of the mask.

    Args:
        query: (heads, Q, D).
        key, value: (groups, K, D); each group of keys serves heads / groups heads in a row.
        mask: (Q, K) bool, each row with a key.

    Returns:
        (heads, Q, D).
    """
    groups, length = key.shape[:2]
    if query.is_cuda or length > LONGEST_EXPLICIT:
        fused = functional.scaled_dot_product_attention(
            query[None], key[None], value[None], attn_mask=mask, scale=scale, enable_gqa=True
        )
        return fused[0]
    shared = query.shape[0] // groups
    bias = torch.zeros(mask.shape, dtype=query.dtype).masked_fill_(~mask, float("-inf")).repeat(shared, 1)
    return weigh(query.reshape(groups, -1, query.shape[2]), key, value, bias, scale).view_as(query)


def attend_trees(query: Tensor, key: Tensor, value: Tensor, layout: Tensor, scale: float) -> Tensor:
    """softmax(scale·q·kᵀ) v inside the trees of a layout (2, S), one tree after the other.

    Args:
        query: (S / ranks, heads, D), this context-parallel rank's part.
        key, value: (S, groups, D).

    Returns:
        (S / ranks, heads, D).
    """
    query, key, value = (heads.transpose(0, 1) for heads in (query, key, value))
    numbers, branches = layout
    lengths = torch.unique_consecutive(numbers, return_counts=True)[1].tolist()
    masks = [tree_mask(tree) for tree in branches.split(lengths)]
    group, own_lengths = parallel_state.get_context_parallel_group(), lengths
    if group.size() > 1:
        own = places(len(numbers), group.rank(), group.size()).to(layout.device)
        own_lengths = torch.bincount(numbers[own], minlength=len(lengths)).tolist()
        starts = torch.tensor([0, *lengths[:-1]]).cumsum(0).tolist()
        masks = [mask[rows - start] for mask, rows, start in zip(masks, own.split(own_lengths), starts, strict=True)]
    trees = zip(
        query.split(own_lengths, dim=1), key.split(lengths, dim=1), value.split(lengths, dim=1), masks, strict=True
    )
    return torch.cat([attend(*tree, scale) for tree in trees], dim=1).transpose(0, 1)


class TreeAttention(MegatronModule):
    """The heads of one layer that are on this rank.

    `forward(query, key, value, layout)`: query (S, 1, heads, D), key and value (S, 1, groups, D), and the (2, S)
    int64 layout of `MicroBatch` where Megatron passes a mask on. Returns (S, 1, heads·D). Of a sequence divided over
    context-parallel ranks the layout is the whole one's; keys and values are gathered, queries stay where they are.
    """

    def __init__(self, config: TransformerConfig, softmax_scale: float | None = None, **kwargs: Any) -> None:
        super().__init__(config=config)
        self.scale = softmax_scale or config.kv_channels**-0.5

    def forward(self, query: Tensor, key: Tensor, value: Tensor, layout: Tensor, **kwargs: Any) -> Tensor:
        group = parallel_state.get_context_parallel_group()
        query, key, value = query.squeeze(1), *(gather_sequence(heads, group).squeeze(1) for heads in (key, value))
        heads, groups = query.shape[1], key.shape[1]
        blocks = None
        if not layout.is_cuda and group.size() == 1:
            blocks = placed(SameMemory(layout), groups, heads // groups, query.dtype)
        if blocks is not None:
            attended = attend_blocks(query, key, value, blocks, self.scale)
        else:
            attended = attend_trees(query, key, value, layout, self.scale)
        return attended.reshape(query.shape[0], 1, -1)
