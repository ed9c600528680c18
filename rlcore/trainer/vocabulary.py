"""Log-probability and entropy from logits whose vocabulary is divided over the tensor-parallel ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import reduce_from_tensor_model_parallel_region
from torch import Tensor

from rlcore.algorithms import entropy_from_logits, logprobs_from_logits


def score_tokens(
    logits: Tensor, tokens: Tensor, group: dist.ProcessGroup, *, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    """log p(token) and the entropy of p, both the same on all ranks of the group.

    Args:
        logits: (N, V / ranks) float32, this rank's part of the vocabulary, in the order of the ranks.
        tokens: (N,) int64, of the whole vocabulary.
        entropy_gradient: whether the entropy has a gradient.

    Returns:
        Two (N,) float32. A gradient that is the same on all ranks goes back into each rank's logits.
    """
    with_gradient = entropy_gradient and torch.is_grad_enabled()
    if group.size() == 1:
        logprobs = logprobs_from_logits(logits, tokens)
        # Second, so that without its gradient the backward pass does not compute it again.
        with torch.set_grad_enabled(with_gradient):
            return logprobs, entropy_from_logits(logits)
    largest = logits.detach().amax(-1, keepdim=True)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    shifted = logits - largest
    local = tokens - group.rank() * logits.shape[-1]
    here = (local >= 0) & (local < logits.shape[-1])
    chosen = shifted.gather(-1, torch.where(here, local, 0)[:, None])[:, 0] * here
    exponentials = shifted.exp()
    total = reduce_from_tensor_model_parallel_region(exponentials.sum(-1), group=group)
    logprobs = reduce_from_tensor_model_parallel_region(chosen, group=group) - total.log()
    with torch.set_grad_enabled(with_gradient):
        weighted = reduce_from_tensor_model_parallel_region((exponentials * shifted).sum(-1), group=group)
        return logprobs, total.log() - weighted / total
