"""Megatron's distributed optimizer: AdamW on float32 main weights, sharded over the data-parallel ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32

from rlcore.trainer.settings import OptimizerSettings

Sharding = Literal["dp_reshardable", "fully_reshardable"]


def distribute(pieces: Sequence[GPTModel]) -> list[DistributedDataParallel]:
    """The pieces of the model with float32 gradient buffers that the data-parallel ranks sum, not average.

    The sum is because each rank's loss is already in the denominators of the whole batch.
    """
    settings = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True)
    return [DistributedDataParallel(config=piece.config, ddp_config=settings, module=piece) for piece in pieces]


def make_optimizer(
    config: OptimizerSettings, pieces: Sequence[DistributedDataParallel], dtype: torch.dtype
) -> MegatronOptimizer:
    """AdamW with gradient clipping. `Schedule` sets learning rate and weight decay, before every update."""
    settings = OptimizerConfig(
        optimizer="adam",
        lr=config.learning_rate,
        weight_decay=config.weight_decay,
        adam_beta1=config.adam_beta1,
        adam_beta2=config.adam_beta2,
        clip_grad=config.max_grad_norm,
        bf16=dtype is torch.bfloat16,
        params_dtype=dtype,
        use_distributed_optimizer=True,
    )
    optimizer = get_megatron_optimizer(settings, list(pieces))
    for part in optimizer.chained_optimizers:
        if isinstance(part.optimizer, torch.optim.AdamW):
            for group in part.param_groups:
                # It goes over each tensor once instead of a dozen times.
                group["fused"] = True
    return optimizer


def reduce_gradients(pieces: Sequence[DistributedDataParallel], optimizer: MegatronOptimizer) -> float:
    """Sum the ranks' gradients; the norm of the sum, before clipping (which `take_step` does).

    It is not finite where an element is not: on all ranks alike.
    """
    finalize_model_grads(list(pieces))
    optimizer.prepare_grads()
    return float(optimizer.get_grad_norm())


def take_step(optimizer: MegatronOptimizer, norm: float) -> None:
    """Clip the gradients that were reduced, whose norm this is, and step.

    Megatron's own `step` computes the norm again, which takes as long as AdamW does.
    """
    for part in optimizer.chained_optimizers:
        if parameters := part.get_parameters():
            clip_grad_by_total_norm_fp32(parameters, max_norm=part.config.clip_grad, total_norm=norm)
    optimizer.step_with_ready_grads()


def zero_gradients(pieces: Sequence[DistributedDataParallel], optimizer: MegatronOptimizer) -> None:
    for piece in pieces:
        piece.zero_grad_buffer()
    optimizer.zero_grad()


def sharded_state(
    pieces: Sequence[DistributedDataParallel], optimizer: MegatronOptimizer, sharding: Sharding, *, is_loading: bool
) -> dict[str, Any]:
    """What a distributed checkpoint holds of model and optimizer.

    The optimizer's format `dp_reshardable` writes each rank's shards as they lie in memory: another number of
    data-parallel ranks can load it, another tensor, pipeline or expert layout cannot. `fully_reshardable` can be
    loaded in any layout, and takes more time and memory to write.
    """
    metadata = {"distrib_optim_sharding_type": sharding}
    model_state = {
        f"model{number}": piece.module.sharded_state_dict(metadata=metadata) for number, piece in enumerate(pieces)
    }
    optimizer_state = optimizer.sharded_state_dict(model_state, is_loading=is_loading, metadata=metadata)
    return {**model_state, "optimizer": optimizer_state}
