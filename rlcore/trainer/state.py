"""Megatron's distributed checkpoint (torch_dist) of model, optimizer and random states."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.validation import StrictHandling
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from torch.distributed.checkpoint.api import CheckpointException

from rlcore.trainer.layout import Layout
from rlcore.trainer.optimizer import Sharding, sharded_state


class CheckpointFailed(RuntimeError):
    """A rank could not write or read its part of a checkpoint."""


def save_state(
    directory: Path, pieces: Sequence[DistributedDataParallel], optimizer: MegatronOptimizer, sharding: Sharding
) -> None:
    """Write the checkpoint into an existing, empty directory. All ranks call it together.

    The random states are the first rank's: no layer draws from them, so they are the same on all.

    Raises:
        CheckpointFailed: a rank could not write; says why.
    """
    state = sharded_state(pieces, optimizer, sharding, is_loading=False)
    state["random"] = {"torch": torch.get_rng_state(), "megatron": get_cuda_rng_tracker().get_states()}
    with _failures_of_ranks("saving", directory):
        dist_checkpointing.save(state, str(directory))


def load_state(
    directory: Path, pieces: Sequence[DistributedDataParallel], optimizer: MegatronOptimizer, sharding: Sharding
) -> None:
    """Restore model, optimizer and random states in place. All ranks call it together.

    Raises:
        CheckpointFailed: a rank could not read; says why.
    """
    wanted = sharded_state(pieces, optimizer, sharding, is_loading=True)
    with _failures_of_ranks("loading", directory):
        state = dist_checkpointing.load(wanted, str(directory), strict=StrictHandling.RAISE_ALL)
    for number, piece in enumerate(pieces):
        piece.module.load_state_dict(state[f"model{number}"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"]["torch"])
    get_cuda_rng_tracker().set_states(state["random"]["megatron"])


def check_layout(directory: Path, saved: Layout, wanted: Layout, sharding: Sharding) -> None:
    """
    Raises:
        CheckpointFailed: what was saved in one layout cannot be loaded in the other. Says which can.
    """
    if sharding == "dp_reshardable" and wanted.divides_model:
        raise CheckpointFailed(
            f"{directory} was saved by ranks that each held the whole model, which only such ranks can load: "
            "go on in such a layout until a checkpoint is saved with trainer.reshardable_checkpoints=true"
        )
    if (saved.expert_model_parallel_size > 1) != (wanted.expert_model_parallel_size > 1):
        raise CheckpointFailed(
            f"{directory} was saved at expert_model_parallel_size {saved.expert_model_parallel_size} and cannot be "
            f"loaded at {wanted.expert_model_parallel_size}: divided experts have an optimizer of their own"
        )


@contextmanager
def _failures_of_ranks(doing: str, directory: Path) -> Iterator[None]:
    """torch's CheckpointException is a BaseException, which would end a process that handles errors."""
    try:
        yield
    except CheckpointException as exception:
        reasons = "; ".join(f"rank {rank}: {failure[0]}" for rank, failure in exception.failures.items())
        # What torch's writer says of a full disk does not mention the disk.
        free = shutil.disk_usage(directory).free / 1e9
        raise CheckpointFailed(f"{doing} {directory} ({free:.1f} GB free there): {reasons}") from exception
