"""The vocabulary's two ends: embeddings of tokens, and their scores, a tile of the vocabulary at a time.

The gradient of the weights is as large as they are, and in a micro-batch most rows of the embeddings' have none.
Where Megatron keeps a float32 sum of a weight's gradients (`main_grad`), the two add theirs to it and give none back.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

TILE = {"cpu": 1 << 21, "cuda": 1 << 26}
"""Logits that exist at the same time: on a CPU they stay in its cache, and in the heap."""


def score_tokens(
    hidden: Tensor,
    weight: Tensor,
    tokens: Tensor,
    group: dist.ProcessGroup,
    *,
    temperature: float,
    entropy_gradient: bool,
) -> tuple[Tensor, Tensor]:
    """log p(token) and the entropy of p = softmax(hidden·weightᵀ / temperature), both the same on all ranks.

    The backward pass computes the logits once more. Products are in the dtype of the weights, sums in float32.

    Args:
        hidden: (N, H), the same on all ranks of the group, as its gradient is.
        weight: (V / ranks, H): this rank's part of the vocabulary, in the order of the ranks.
        tokens: (N,) int64, of the whole vocabulary.
        entropy_gradient: whether the entropy has a gradient.

    Returns:
        Two (N,) float32. A gradient of theirs is the same on all ranks.
    """
    scores: tuple[Tensor, Tensor] = _TokenScores.apply(hidden, weight, tokens, group, temperature, entropy_gradient)
    return scores


def embed(tokens: Tensor, weight: Tensor) -> Tensor:
    """(…, H) rows of the weight (V, H) for int64 tokens (…)."""
    embedded: Tensor = _Embeddings.apply(tokens, weight)
    return embedded


class _Embeddings(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.weight_shape, ctx.main_grad = weight.shape, getattr(weight, "main_grad", None)
        return functional.embedding(tokens, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor | None]:
        (tokens,) = ctx.saved_tensors
        (gradient,) = gradients
        given = gradient.new_zeros(ctx.weight_shape) if ctx.main_grad is None else None
        total = given if given is not None else ctx.main_grad
        total.index_add_(0, tokens.flatten(), gradient.reshape(-1, gradient.shape[-1]).to(total.dtype))
        return None, given


class _TokenScores(torch.autograd.Function):
    """With z the logits, p their softmax and H its entropy: ∂log p(t)/∂z = 1ₜ − p, ∂H/∂z = −p·(log p + H)."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        tokens: Tensor,
        group: dist.ProcessGroup,
        temperature: float,
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        largest = torch.full(tokens.shape, float("-inf"), device=hidden.device)
        total, weighted, chosen = (torch.zeros_like(largest) for _ in range(3))
        local = tokens - group.rank() * len(weight)
        for start, tile in _tiles(weight, len(hidden)):
            logits = _logits(hidden, tile, temperature)
            place, here = _place(local, start, len(tile))
            chosen += logits.gather(1, place)[:, 0] * here
            top = torch.maximum(largest, logits.amax(-1))
            before = (largest - top).exp()
            shifted = logits.sub_(top[:, None])
            exponentials = shifted.exp()
            here_total = exponentials.sum(-1)
            weighted = weighted * before + torch.einsum("nv,nv->n", exponentials, shifted) + top * here_total
            total = total * before + here_total
            largest = top
        if group.size() > 1:
            own = largest.clone()
            dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
            sums = torch.stack([total, weighted, chosen])
            sums[:2] *= (own - largest).exp()
            dist.all_reduce(sums, group=group)
            total, weighted, chosen = sums
        normalizer = largest + total.log()
        entropy = normalizer - weighted / total
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        ctx.save_for_backward(hidden, weight, local, normalizer, entropy)
        ctx.group, ctx.temperature, ctx.entropy_gradient = group, temperature, entropy_gradient
        ctx.main_grad = getattr(weight, "main_grad", None)
        return chosen - normalizer, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, local, normalizer, entropy = ctx.saved_tensors
        of_logprob, of_entropy = (gradient / ctx.temperature for gradient in gradients)
        hidden_gradient = torch.zeros_like(hidden, dtype=torch.float32)
        weight_gradient = torch.zeros_like(weight) if ctx.needs_input_grad[1] and ctx.main_grad is None else None
        total = ctx.main_grad if weight_gradient is None else weight_gradient
        for start, tile in _tiles(weight, len(hidden)):
            logprobs = _logits(hidden, tile, ctx.temperature).sub_(normalizer[:, None])
            if ctx.entropy_gradient:
                probabilities = logprobs.exp()
                factor = logprobs.add_(entropy[:, None]).mul_(of_entropy[:, None]).add_(of_logprob[:, None])
                gradient = probabilities.mul_(factor).neg_()
            else:
                gradient = logprobs.exp_().mul_(-of_logprob[:, None])
            place, here = _place(local, start, len(tile))
            gradient = gradient.scatter_add_(1, place, (of_logprob * here)[:, None]).to(hidden.dtype)
            hidden_gradient += gradient @ tile
            if ctx.needs_input_grad[1]:
                total[start : start + len(tile)] += gradient.t() @ hidden
        if ctx.group.size() > 1:
            dist.all_reduce(hidden_gradient, group=ctx.group)
        return hidden_gradient.to(hidden.dtype), weight_gradient, None, None, None, None


def _tiles(weight: Tensor, rows: int) -> list[tuple[int, Tensor]]:
    """Parts of the vocabulary (v, H), each with its place."""
    width = max(TILE[weight.device.type] // max(rows, 1), 1)
    return [(number * width, tile) for number, tile in enumerate(weight.detach().split(width))]


def _logits(hidden: Tensor, tile: Tensor, temperature: float) -> Tensor:
    """(N, v) float32, a tensor of its own."""
    logits = torch.mm(hidden, tile.t()).to(torch.float32, copy=True)
    return logits if temperature == 1.0 else logits.div_(temperature)


def _place(local: Tensor, start: int, width: int) -> tuple[Tensor, Tensor]:
    """Of each token: its column in the tile (N, 1), and whether it is there (N,) bool."""
    place = local - start
    return place.clamp(0, width - 1)[:, None], (place >= 0) & (place < width)
