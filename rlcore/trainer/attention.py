"""Attention inside the trees of a packed sequence, in place of Megatron's core attention."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn import functional

LONGEST_EXPLICIT = 1024
"""Longest tree, in tokens, whose attention weights a CPU writes out: up to there two matrix products are faster than
torch's fused kernel, beyond it they are not, and their memory is quadratic."""


def tree_mask(branches: Tensor) -> Tensor:
    """(L, L) bool: which keys each query of a tree sees, from its (L,) branches: earlier ones of prompt and own branch.

    Branch 0 is the prompt.
    """
    same = (branches[:, None] == branches[None, :]) | (branches[None, :] == 0)
    return same.tril()


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """softmax(scale·q·kᵀ) v over the keys of the mask.

    Args:
        query: (heads, L, D).
        key, value: (groups, L, D); each group of keys serves heads / groups heads in a row.
        mask: (L, L) bool, each row with a key.

    Returns:
        (heads, L, D).
    """
    length = query.shape[1]
    if query.is_cuda or length > LONGEST_EXPLICIT:
        fused = functional.scaled_dot_product_attention(
            query[None], key[None], value[None], attn_mask=mask, scale=scale, enable_gqa=True
        )
        return fused[0]
    groups, shared = key.shape[0], query.shape[0] // key.shape[0]
    bias = torch.zeros(length, length, dtype=query.dtype).masked_fill_(~mask, float("-inf")).repeat(shared, 1)
    scores = torch.baddbmm(bias, query.reshape(groups, shared * length, -1), key.transpose(1, 2), alpha=scale)
    return torch.bmm(scores.softmax(-1), value).view_as(query)


class TreeAttention(MegatronModule):
    """The heads of one layer.

    `forward(query, key, value, layout)`: query (S, 1, heads, D), key and value (S, 1, groups, D), and the (2, S)
    int64 layout of `MicroBatch` where Megatron passes a mask on. Returns (S, 1, heads·D).
    """

    def __init__(self, config: TransformerConfig, softmax_scale: float | None = None, **kwargs: Any) -> None:
        super().__init__(config=config)
        self.scale = softmax_scale or config.kv_channels**-0.5

    def forward(self, query: Tensor, key: Tensor, value: Tensor, layout: Tensor, **kwargs: Any) -> Tensor:
        query, key, value = (heads.squeeze(1).transpose(0, 1) for heads in (query, key, value))
        lengths = torch.unique_consecutive(layout[0], return_counts=True)[1].tolist()
        parts = [tensor.split(lengths, dim=-2) for tensor in (query, key, value)]
        trees = zip(*parts, layout[1].split(lengths), strict=True)
        attended = torch.cat([attend(q, k, v, tree_mask(branches), self.scale) for q, k, v, branches in trees], dim=1)
        return attended.transpose(0, 1).reshape(attended.shape[1], 1, -1)
