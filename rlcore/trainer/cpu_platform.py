"""Megatron-Core on a machine without CUDA.

Megatron-Core spells CUDA in many places: devices of new tensors, random states, type names. `install`
replaces those spellings, once per process, for what this trainer uses: its parallel layouts over gloo, the
distributed optimizer, and torch_dist checkpoints.
"""

from __future__ import annotations

import ctypes
import importlib
import queue
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from rlcore.trainer.vocabulary import embed

MEGATRON_VERSION = "0.16.1"

SPELL_CUDA = (
    "megatron.core.dist_checkpointing.exchange_utils",
    "megatron.core.dist_checkpointing.strategies.state_dict_saver",
    "megatron.core.models.common.embeddings.rope_utils",
    "megatron.core.optimizer.clip_grads",
    "megatron.core.optimizer.optimizer",
    "megatron.core.pipeline_parallel.schedules",
    "megatron.core.transformer.utils",
    "megatron.core.utils",
)
"""Modules that name the device `cuda`, or ask for pinned memory, when they make a tensor."""

FACTORIES = ("empty", "empty_like", "ones", "tensor", "zeros")
"""Functions of torch that those modules call with `device="cuda"`."""

_installed = False


class UnsupportedMegatron(RuntimeError):
    """The installed megatron-core is not the version that the replacements were made for."""


def install() -> None:
    """Make megatron-core work on the CPU. Does nothing where CUDA is present, or the second time.

    Raises:
        UnsupportedMegatron: another version than MEGATRON_VERSION is installed.
    """
    global _installed
    if _installed or torch.cuda.is_available():
        return
    from megatron.core import __version__

    if __version__ != MEGATRON_VERSION:
        raise UnsupportedMegatron(
            f"megatron-core {__version__} is installed; its CPU platform was made for {MEGATRON_VERSION}: "
            f"pip install megatron-core=={MEGATRON_VERSION}"
        )
    from megatron.core.tensor_parallel import layers

    _replace_cuda_functions()
    _replace_random_states()
    for name in SPELL_CUDA:
        importlib.import_module(name).torch = _TorchOnCpu()  # type: ignore[attr-defined]
    _answer_cuda_type_names()
    _experts_without_streams()
    _exchange_nothing_alone()
    layers.F = _Functional()
    _write_checkpoints_without_manager()
    _installed = True


class _TorchOnCpu(ModuleType):
    """torch, except that tensors asked for on `cuda` are made on the CPU, and none is pinned."""

    def __init__(self) -> None:
        super().__init__("torch")

    def __getattr__(self, name: str) -> Any:
        value = getattr(torch, name)
        if name not in FACTORIES:
            return value

        def make(*args: Any, **kwargs: Any) -> torch.Tensor:
            if kwargs.get("device") == "cuda":
                kwargs["device"] = "cpu"
            kwargs.pop("pin_memory", None)
            return value(*args, **kwargs)

        return make


class _Functional(ModuleType):
    """torch.nn.functional, except that an embedding adds its gradient to Megatron's sum."""

    def __init__(self) -> None:
        super().__init__("torch.nn.functional")
        self.embedding = embed

    def __getattr__(self, name: str) -> Any:
        return getattr(functional, name)


def _replace_cuda_functions() -> None:
    cpu = torch.device("cpu")
    torch.cuda.current_device = lambda: cpu  # type: ignore[assignment,return-value]
    torch.cuda.synchronize = lambda device=None: None
    torch.cuda.get_rng_state = lambda device="cuda": torch.get_rng_state()
    torch.cuda.manual_seed = _seed
    torch.Tensor.cuda = lambda self, *args, **kwargs: self  # type: ignore[method-assign]


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)


def _replace_random_states() -> None:
    from megatron.core.tensor_parallel import random

    random._get_cuda_rng_state = lambda device="cuda", clone=False, graph_safe=False: torch.get_rng_state()
    random._set_cuda_rng_state = lambda new_state, device=-1, graph_safe=False: torch.set_rng_state(new_state)


def _answer_cuda_type_names() -> None:
    """Megatron's optimizers tell parameters apart by names such as `torch.cuda.BFloat16Tensor`."""
    type_of = torch.Tensor.type

    def answer(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        name = type_of(self, *args, **kwargs)
        asked_by = sys._getframe(1).f_globals.get("__name__", "")
        if isinstance(name, str) and asked_by.startswith("megatron.core."):
            return name.replace("torch.", "torch.cuda.", 1)
        return name

    torch.Tensor.type = answer  # type: ignore[assignment,method-assign]


def _experts_without_streams() -> None:
    """The numbers of tokens for each expert are in host memory already; the router finds no Transformer Engine."""
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher

    def to_host(self: Any, point: str, tokens_per_expert: torch.Tensor | None = None) -> torch.Tensor | None:
        for name in ("input_splits", "output_splits", "output_splits_tp"):
            splits = getattr(self, name)
            if isinstance(splits, torch.Tensor):
                setattr(self, name, splits.numpy())
        return tokens_per_expert

    moe_utils.te_general_gemm = None
    MoEAlltoAllTokenDispatcher.cuda_dtoh_stream = object()
    MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize = to_host


def _exchange_nothing_alone() -> None:
    """One data-parallel rank keeps its gradients and weights where they are.

    gloo copies them, in threads whose OpenMP pools together with torch's are more threads than cores: idle ones then
    sleep at once instead of waiting for the next operation.
    """
    from megatron.core.distributed import param_and_grad_buffer

    def alone(collective: Callable[..., Any]) -> Callable[..., Any]:
        def exchange(output: torch.Tensor, part: torch.Tensor, *, group: dist.ProcessGroup, **kwargs: Any) -> Any:
            if group.size() > 1:
                return collective(output, part, group=group, **kwargs)
            if output.data_ptr() != part.data_ptr():
                output.copy_(part)
            return None

        return exchange

    for name in ("dist_reduce_scatter_func", "dist_all_gather_func"):
        setattr(param_and_grad_buffer, name, alone(getattr(param_and_grad_buffer, name)))


def _write_checkpoints_without_manager() -> None:
    """A synchronous save reads its results in the process that put them: no manager process is needed."""
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    filesystem_async._results_queue = queue.SimpleQueue()


def release_heap() -> None:
    """Give the freed part of the heap back to the system, for the engine to use: glibc keeps it otherwise."""
    if not torch.cuda.is_available():
        ctypes.CDLL(None).malloc_trim(0)
