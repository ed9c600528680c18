"""Megatron's distributed optimizer: AdamW on float32 main weights, sharded over the data-parallel ranks."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer

from rlcore.trainer.settings import OptimizerSettings


def distribute(model: GPTModel) -> DistributedDataParallel:
    """The model with float32 gradient buffers that are summed, not averaged, over the data-parallel ranks.

    The sum is because each rank's loss is already in the denominators of the whole batch.
    """
    settings = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True)
    return DistributedDataParallel(config=model.config, ddp_config=settings, module=model)


def make_optimizer(config: OptimizerSettings, model: DistributedDataParallel, dtype: torch.dtype) -> MegatronOptimizer:
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
    return get_megatron_optimizer(settings, [model])


def reduce_gradients(model: DistributedDataParallel, optimizer: MegatronOptimizer) -> float:
    """Sum the ranks' gradients; the norm of the sum, before clipping (which `optimizer.step` does).

    It is not finite where an element is not: on all ranks alike.
    """
    finalize_model_grads([model])
    optimizer.prepare_grads()
    return float(optimizer.get_grad_norm())


def zero_gradients(model: DistributedDataParallel, optimizer: MegatronOptimizer) -> None:
    model.zero_grad_buffer()
    optimizer.zero_grad()


def sharded_state(model: DistributedDataParallel, optimizer: MegatronOptimizer, *, is_loading: bool) -> dict[str, Any]:
    """What a distributed checkpoint holds of model and optimizer.

    The optimizer's format `dp_reshardable` writes each rank's shards as they lie in memory: another number of
    data-parallel ranks can load it, another tensor or pipeline layout cannot.
    """
    metadata = {"distrib_optim_sharding_type": "dp_reshardable"}
    model_state = model.module.sharded_state_dict(metadata=metadata)
    optimizer_state = optimizer.sharded_state_dict(model_state, is_loading=is_loading, metadata=metadata)
    return {"model": model_state, "optimizer": optimizer_state}
