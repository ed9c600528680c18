"""What a layer computes element by element is what torch's own operations give, and so are the gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn import functional

from rlcore.trainer.elementwise import RMSNorm, SwiGLU, rotate, rotation

CONFIG = TransformerConfig(num_layers=1, hidden_size=16, num_attention_heads=2)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def assert_same(ours: Tensor, theirs: Tensor, *inputs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1)).to(ours.dtype)
    gradients = [torch.autograd.grad((result * weight).sum(), inputs) for result in (ours, theirs)]
    torch.testing.assert_close(gradients[0], gradients[1])


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 9), st.sampled_from([1e-3, 1.0, 1e3]), st.integers(0, 9))
def test_a_norm_is_torchs(rows: int, scale: float, seed: int) -> None:
    norm = RMSNorm(CONFIG, 16, eps=1e-5)
    with torch.no_grad():
        norm.weight.copy_(normal(16, seed=seed + 1))
    x = (normal(rows, 1, 16, seed=seed).detach() * scale).requires_grad_()
    assert_same(norm(x), functional.rms_norm(x, (16,), norm.weight, 1e-5), x, norm.weight)


def test_a_norm_of_bfloat16_is_rounded_once() -> None:
    norm = RMSNorm(CONFIG, 16).to(torch.bfloat16)
    x = normal(5, 1, 16).detach().bfloat16()
    exact = functional.rms_norm(x.double(), (16,), norm.weight.double(), 1e-5)
    torch.testing.assert_close(norm(x), exact.bfloat16(), rtol=2**-8, atol=0)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_norms_weight_is_marked_where_ranks_see_a_part_of_the_tokens(sequence_parallel: bool) -> None:
    config = TransformerConfig(
        num_layers=1,
        hidden_size=16,
        num_attention_heads=2,
        tensor_model_parallel_size=2 if sequence_parallel else 1,
        sequence_parallel=sequence_parallel,
    )
    assert vars(RMSNorm(config, 16).weight)["sequence_parallel"] is sequence_parallel


@pytest.mark.parametrize("rows", [1, 6])
def test_a_gate_is_silu_times_up(rows: int) -> None:
    x = normal(rows, 1, 20)
    gate, up = x.chunk(2, -1)
    assert_same(SwiGLU(CONFIG)(x), functional.silu(gate) * up, x)


@pytest.mark.parametrize("heads", [1, 3])
def test_rotation_turns_pairs_of_coordinates_by_their_angle(heads: int) -> None:
    x = normal(5, 1, heads, 8)
    half = normal(5, 1, 1, 4, seed=2).detach() * 10
    turned = torch.view_as_complex(torch.stack(x.chunk(2, -1), -1)) * torch.polar(torch.ones_like(half), half)
    expected = torch.cat([turned.real, turned.imag], -1)
    assert_same(rotate(x, rotation(torch.cat([half, half], -1))), expected, x)
