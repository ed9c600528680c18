"""Context parallelism: which places of a sequence each rank computes, and how the ranks' parts come together."""

from __future__ import annotations

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import (
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
)
from torch import Tensor


def places(length: int, rank: int, ranks: int) -> Tensor:
    """(length / ranks,) int64: the places of one rank, in ascending order.

    Of 2·ranks equal chunks rank r has chunk r and the r-th from the end: a causal sequence is the same work for all.
    `length` is a multiple of 2·ranks, or there is one rank.
    """
    if ranks == 1:
        return torch.arange(length)
    chunks = torch.arange(length).chunk(2 * ranks)
    return torch.cat([chunks[rank], chunks[2 * ranks - 1 - rank]])


def gather_sequence(part: Tensor, group: dist.ProcessGroup) -> Tensor:
    """(S, …) in order from every rank's (S / ranks, …). Gradients of a place from all ranks add up in its own."""
    if group.size() == 1:
        return part
    gathered = gather_from_sequence_parallel_region(part, group=group)
    length = gathered.shape[0]
    order = torch.cat([places(length, rank, group.size()) for rank in range(group.size())]).to(part.device)
    return gathered[order.argsort()]


def choose(part: Tensor, chosen: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    """The rows of a rank's (S / ranks, …) that stand at `chosen` places (N,) of S, and which of the N these are."""
    if group.size() == 1:
        return part[chosen], torch.arange(len(chosen), device=part.device)
    own = places(len(part) * group.size(), group.rank(), group.size()).to(part.device)
    local = torch.full((len(part) * group.size(),), -1, device=part.device)
    local[own] = torch.arange(len(own), device=part.device)
    which = (local[chosen] >= 0).nonzero()[:, 0]
    return part[local[chosen[which]]], which


def unite(values: Tensor, which: Tensor, count: int, group: dist.ProcessGroup) -> Tensor:
    """(count,) from every rank's values of `which`. What follows is the same on all ranks, and so is its gradient."""
    if group.size() == 1:
        return values
    united = values.new_zeros(count).index_put((which,), values)
    return reduce_from_tensor_model_parallel_region(united, group=group)
