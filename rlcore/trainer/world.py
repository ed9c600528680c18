"""The process groups of the trainer's ranks."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from torch.distributed import HashStore, Store, TCPStore

from rlcore.trainer.layout import Layout

TIMEOUT_MINUTES = 10
"""How long a rank waits for the others in one collective; a hung rank is noticed after this."""


def join_world(layout: Layout, rank: int, master_address: str, master_port: int, seed: int) -> torch.device:
    """Enter the Megatron world of `layout.world_size` ranks, and return this rank's device.

    A process joins once; calls after that must name the same world. A world of one needs no port.

    Raises:
        ValueError: rank outside the world, no port for more than one rank, or this process is in another world.
    """
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    world_size = layout.world_size
    if dist.is_initialized():
        if (dist.get_rank(), dist.get_world_size()) != (rank, world_size):
            raise ValueError(
                f"this process is rank {dist.get_rank()} of {dist.get_world_size()}, not {rank} of {world_size}"
            )
        return device
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is outside a world of {world_size}")
    if world_size == 1:
        store: Store = HashStore()
    elif master_port == 0:
        raise ValueError(f"a world of {world_size} ranks needs a master_port that all of them know")
    else:
        timeout = timedelta(minutes=TIMEOUT_MINUTES)
        store = TCPStore(master_address, master_port, world_size, is_master=rank == 0, timeout=timeout)
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(minutes=TIMEOUT_MINUTES),
    )
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tensor_model_parallel_size,
        pipeline_model_parallel_size=layout.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=layout.virtual_pipeline_model_parallel_size,
        context_parallel_size=layout.context_parallel_size,
        expert_model_parallel_size=layout.expert_model_parallel_size,
        distributed_timeout_minutes=TIMEOUT_MINUTES,
    )
    torch.manual_seed(seed)
    tensor_parallel.model_parallel_cuda_manual_seed(seed)
    return device


def computes_outputs() -> bool:
    """Whether this rank is the one of its data-parallel replica that speaks for it.

    The last pipeline stage has the outputs; its tensor- and context-parallel ranks all have the same.
    """
    return (
        parallel_state.is_pipeline_last_stage()
        and parallel_state.get_tensor_model_parallel_rank() == 0
        and parallel_state.get_context_parallel_rank() == 0
    )
