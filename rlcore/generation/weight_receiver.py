"""The engine's end of the weight transfer, behind vLLM's interface for it. Runs inside vLLM's worker process."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from inspect import BoundArguments
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload.layerwise import (
    finalize_layerwise_reload,
    get_layerwise_info,
    initialize_layerwise_reload,
)

from rlcore.generation.weights_expected import ExpectedWeights
from rlcore.weights.bucket import Bucket
from rlcore.weights.shared_memory import read_bucket


@dataclass
class NothingToAgreeOn(WeightTransferInitInfo):
    """Every bucket says where it is."""


@dataclass
class BucketInfo(WeightTransferUpdateInfo):
    """`Bucket.to_dict()`."""

    path: str
    tensors: list[dict[str, Any]]


class SharedMemoryReceiver(WeightTransferEngine[NothingToAgreeOn, BucketInfo]):
    """Loads buckets that the trainer has written to shared memory into the running model."""

    init_info_cls = NothingToAgreeOn
    update_info_cls = BucketInfo
    _expected: ExpectedWeights

    def init_transfer_engine(self, init_info: NothingToAgreeOn) -> None:
        """Nothing: memory is reached by the path in each bucket."""

    def start_weight_update(self) -> None:
        self._expected = ExpectedWeights.of_model(Path(self.model_config.model))
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As vLLM's own, which needs an accelerator, without one."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.cuda.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: BucketInfo) -> None:
        """Load one bucket. It is read when this returns.

        Raises:
            WeightsDamaged: a tensor is not what the trainer wrote.
            ValueError: a tensor that is not the model's, or came before.
        """
        bucket = Bucket.from_dict({"path": update_info.path, "tensors": update_info.tensors})
        self._expected.take({tensor.name: tensor.shape for tensor in bucket.tensors})
        self.model.load_weights(read_bucket(bucket))
        self._keep_what_waits()

    def finish_weight_update(self) -> None:
        """The model is complete, and computes with the new weights.

        vLLM's reload packs the weights of each layer again for the CPU kernels, but only of layers that got weights of
        their own. An output head that is tied to the embedding gets none and would go on computing with the packed copy
        of the old embedding, so every head is packed once more here.

        Raises:
            ValueError: tensors of the model did not come.
        """
        self._expected.check_complete()
        finalize_layerwise_reload(self.model, self.model_config)
        for module in self.model.modules():
            if is_packed_head(module):
                dispatch_cpu_unquantized_gemm(module, remove_weight=False)
        if not torch.cuda.is_available():
            # What packing and the batches since the last update freed is in holes of the heap, which glibc keeps.
            ctypes.CDLL(None).malloc_trim(0)

    def shutdown(self) -> None:
        """Nothing is held between updates."""

    def _keep_what_waits(self) -> None:
        """Copy what a layer that is not complete has of this bucket: its memory is going to be written again."""
        for module in self.model.modules():
            for _, arguments in get_layerwise_info(module).loaded_weights:
                _copy_tensors(arguments)


def _copy_tensors(arguments: BoundArguments) -> None:
    for name, value in arguments.arguments.items():
        if isinstance(value, Tensor) and not value.is_meta:
            arguments.arguments[name] = value.clone()


def is_packed_head(module: torch.nn.Module) -> bool:
    """Whether this is an output head that computes with a packed copy of its weight (CPU only)."""
    return isinstance(module, ParallelLMHead) and hasattr(module, "cpu_linear")
