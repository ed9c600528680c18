"""Forward and backward passes of a rank over its micro-batches, by Megatron's pipeline schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any, TypeVar

import torch
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor, nn

from rlcore.progress import counting
from rlcore.trainer.context import places
from rlcore.trainer.microbatches import MicroBatch

D = TypeVar("D")


def train_passes(
    pieces: Sequence[nn.Module],
    micro_batches: Sequence[MicroBatch],
    objective: Callable[[MicroBatch, list[Tensor]], tuple[Tensor, D]],
) -> list[D]:
    """Accumulate the gradients of the objective; what it says besides, of each micro-batch, on the last stage.

    Args:
        pieces: this rank's of the model.
        objective: from the model's outputs, (B, T) each, to the loss and to something else that has no gradient.
    """

    def calculate(micro: MicroBatch, outputs: Tensor) -> tuple[Tensor, Tensor, D | None]:
        # The number of tokens is Megatron's denominator; the loss is in its own already.
        tokens = torch.zeros((), dtype=torch.int, device=outputs.device)
        if not micro.counts:
            return outputs.sum() * 0.0, tokens, None
        loss, data = objective(micro, [micro.align(values) for values in outputs])
        return loss, tokens, data

    results = _run(pieces, micro_batches, calculate, forward_only=False)
    return [data for data in results if data is not None]


@torch.no_grad()
def score_passes(pieces: Sequence[nn.Module], micro_batches: Sequence[MicroBatch]) -> list[tuple[MicroBatch, Tensor]]:
    """The model's first output of each micro-batch, (B, T), on the last stage."""

    def calculate(micro: MicroBatch, outputs: Tensor, non_loss_data: bool) -> tuple[MicroBatch, Tensor]:
        return micro, micro.align(outputs[0])

    return [result for result in _run(pieces, micro_batches, calculate, forward_only=True) if result[0].counts]


def _run(
    pieces: Sequence[nn.Module], micro_batches: Sequence[MicroBatch], calculate: Callable[..., Any], forward_only: bool
) -> list[Any]:
    if not micro_batches:
        return []
    run = get_forward_backward_func()
    with counting("micro-batches", len(micro_batches) * len(pieces)) as done:
        results: list[Any] = run(
            forward_step_func=partial(_forward, calculate, count(1), done),
            data_iterator=[iter(micro_batches) for _ in pieces],
            model=list(pieces),
            num_microbatches=len(micro_batches),
            # Not read: the stages tell one another the shapes.
            seq_length=1,
            micro_batch_size=1,
            forward_only=forward_only,
            collect_non_loss_data=forward_only,
        )
    return results


def _forward(
    calculate: Callable[..., Any],
    numbers: Iterator[int],
    done: Callable[[int], None],
    micro_batches: Iterator[MicroBatch],
    piece: nn.Module,
) -> tuple[Any, Callable[..., Any]]:
    micro = next(micro_batches)
    ranks = parallel_state.get_context_parallel_world_size()
    own = places(micro.input_ids.shape[1], parallel_state.get_context_parallel_rank(), ranks).to(micro.layout.device)
    outputs = piece(
        micro.input_ids[:, own], micro.positions[:, own], micro.layout, labels=micro.labels, loss_mask=micro.scored
    )
    done(next(numbers))
    return outputs, partial(calculate, micro)
