"""What a layer computes element by element, with its gradients, in as few passes over memory as torch has operations.

On a CPU such passes take as long as the matrix products: autograd's own gradients of these functions need two to
three times as many. Sums are in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn
from torch.nn import functional


class RMSNorm(nn.RMSNorm):
    """x / √(mean x² + eps) · weight over the last dimension, in place of Megatron's norms."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        # Under sequence parallelism each rank sees a part of the tokens: the mark adds the gradients up.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = _RMSNorm.apply(x, self.weight, self.eps)
        return normed


class SwiGLU(MegatronModule):
    """silu(gate)·up of (…, 2F) = [gate, up]: (…, F)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config=config)

    def forward(self, x: Tensor) -> Tensor:
        gated: Tensor = _SwiGLU.apply(x)
        return gated


def rotation(angles: Tensor) -> Tensor:
    """(S, 1, 1, D) angles of rotary positions, whose halves are alike, as (2, S, 1, 1, D / 2): cosines and sines."""
    half = angles[..., : angles.shape[-1] // 2]
    return torch.stack([half.cos(), half.sin()])


def rotate(heads: Tensor, by: Tensor) -> Tensor:
    """(S, 1, heads, D) turned by a `rotation`: coordinate i of the first half with i of the second."""
    turned: Tensor = _Rotate.apply(heads, by)
    return turned


class _RMSNorm(torch.autograd.Function):
    """With x̂ = x·r, r = (mean x² + eps)^−½ and g = ∂/∂y · weight: ∂/∂x = r·(g − x̂·mean(g·x̂))."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float()
        scale = (torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_() / x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        normed = wide * scale
        return normed.mul_(weight.float()).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        normed = x.float() * scale
        gradient = gradients[0].float()
        product = gradient * normed
        of_weight = product.flatten(0, -2).sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None
        wide = weight.float()
        along = (product @ wide).unsqueeze(-1).div_(-x.shape[-1])
        of_x = torch.addcmul(gradient * wide, normed, along).mul_(scale)
        return of_x.to(x.dtype), of_weight, None


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        gate, up = x.chunk(2, -1)
        return functional.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gate, up = x.chunk(2, -1)
        result = torch.empty_like(x)
        of_gate, of_up = result.chunk(2, -1)
        torch.mul(functional.silu(gate), gradients[0], out=of_up)
        torch.ops.aten.silu_backward.grad_input(gradients[0] * up, gate, grad_input=of_gate)
        return result


class _Rotate(torch.autograd.Function):
    """The gradient is turned back."""

    @staticmethod
    def forward(ctx: Any, heads: Tensor, by: Tensor) -> Tensor:
        ctx.save_for_backward(by)
        return _turn(heads, *by.to(heads.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (by,) = ctx.saved_tensors
        cosines, sines = by.to(gradients[0].dtype)
        return _turn(gradients[0], cosines, -sines), None


def _turn(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    first, second = heads.chunk(2, -1)
    turned = torch.empty_like(heads)
    left, right = turned.chunk(2, -1)
    torch.mul(first, cosines, out=left).addcmul_(second, sines, value=-1)
    torch.mul(second, cosines, out=right).addcmul_(first, sines)
    return turned
