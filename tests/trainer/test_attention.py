"""Attention over trees is attention over their rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from rlcore.trainer import attention
from rlcore.trainer.attention import attend
from rlcore.trainer.blocks import tree_mask

HEADS, GROUPS, SIZE = 6, 2, 8


def heads(length: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(n, length, SIZE, generator=generator) for n in (HEADS, GROUPS, GROUPS))
    return query.requires_grad_(), key.requires_grad_(), value.requires_grad_()


@settings(deadline=None)
@given(st.integers(1, 6), st.lists(st.integers(0, 5), min_size=1, max_size=4), st.integers(0, 9))
def test_a_branch_attends_as_if_it_stood_alone_after_the_prompt(prompt: int, responses: list[int], seed: int) -> None:
    branches = torch.cat([torch.full((n,), branch) for branch, n in enumerate([prompt, *responses])])
    query, key, value = heads(len(branches), seed)
    ours = attend(query, key, value, tree_mask(branches), SIZE**-0.5)
    theirs = torch.zeros_like(ours)
    for branch in range(len(responses) + 1):
        places = torch.nonzero((branches == 0) | (branches == branch))[:, 0]
        alone = functional.scaled_dot_product_attention(
            query[None, :, places], key[None, :, places], value[None, :, places], is_causal=True, enable_gqa=True
        )[0]
        own = branches[places] == branch
        theirs[:, places[own]] = alone[:, own]
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn(ours.shape, generator=torch.Generator().manual_seed(seed + 1))
    gradients = [torch.autograd.grad((result * weight).sum(), (query, key, value)) for result in (ours, theirs)]
    torch.testing.assert_close(gradients[0], gradients[1])


def test_a_long_tree_takes_the_fused_kernel_to_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = heads(24, seed=0)
    mask = tree_mask(torch.arange(24) // 8)
    explicit = attend(query, key, value, mask, 0.3)
    monkeypatch.setattr(attention, "LONGEST_EXPLICIT", 23)
    torch.testing.assert_close(attend(query, key, value, mask, 0.3), explicit)
