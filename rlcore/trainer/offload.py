"""Device memory of a model and its optimizer, lent to the engine while it generates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import MegatronOptimizer
from torch import Tensor, UntypedStorage


class LentMemory:
    """Weights, float32 main weights and Adam's moments go to host memory and come back; gradients are not kept.

    The storages shrink to nothing under their tensors and are filled again, so every view stays what it is: parameters
    are views of one buffer, and in float32 the optimizer's weights are views of the parameters. Megatron-Core 0.16.1's
    own `offload_to_cpu` gives the optimizer new tensors instead: in float32 its weights are on the device twice
    afterwards, and the parameters stay there.

    Between `lend` and `take_back` no tensor of the model or of the optimizer may be touched.
    """

    def __init__(self, pieces: Sequence[DistributedDataParallel], optimizer: MegatronOptimizer) -> None:
        self._pieces, self._optimizer = pieces, optimizer
        self._device = next(pieces[0].parameters()).device
        self._lent: list[tuple[UntypedStorage, Tensor]] = []
        # Kept from one time to the next, because pinning memory takes longer than copying to it.
        self._host: list[Tensor] = []

    def lend(self) -> int:
        """Free the device memory; its bytes, 0 where it was lent before."""
        if self._lent:
            return 0
        on_device = (tensor.untyped_storage() for tensor in self._tensors() if tensor.device == self._device)
        storages = {storage.data_ptr(): storage for storage in on_device if storage.nbytes()}
        for index, storage in enumerate(storages.values()):
            host = self._host_memory(index, storage.nbytes())
            host.copy_(_bytes_of(storage), non_blocking=True)
            self._lent.append((storage, host))
        gradients = sum(buffer.grad_data.nbytes for buffer in self._gradient_buffers())
        # Waits for the copies.
        for piece in self._pieces:
            piece.offload_grad_buffers(synchronize=True, empty_cache=False)
        for storage, _ in self._lent:
            storage.resize_(0)
        torch.cuda.empty_cache()
        return gradients + sum(host.nbytes for _, host in self._lent)

    def take_back(self) -> None:
        """The same contents in the same tensors, gradients 0. Nothing happens where nothing was lent."""
        for storage, host in self._lent:
            storage.resize_(host.nbytes)
            _bytes_of(storage).copy_(host, non_blocking=True)
        if self._lent:
            for piece in self._pieces:
                piece.restore_grad_buffers(synchronize=True)
        self._lent.clear()

    def _tensors(self) -> Iterator[Tensor]:
        for piece in self._pieces:
            yield from piece.parameters()
            yield from piece.module.buffers()
        for optimizer in self._optimizer.chained_optimizers:
            for group in optimizer.param_groups:
                yield from group["params"]
            for state in optimizer.optimizer.state.values():
                yield from (value for value in state.values() if isinstance(value, Tensor))

    def _gradient_buffers(self) -> list[Any]:
        return [buffer for piece in self._pieces for buffer in (*piece.buffers, *piece.expert_parallel_buffers)]

    def _host_memory(self, index: int, size: int) -> Tensor:
        """The `index`-th piece of host memory, of `size` bytes."""
        if index == len(self._host):
            self._host.append(torch.empty(0, dtype=torch.uint8))
        if self._host[index].nbytes != size:
            self._host[index] = torch.empty(size, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        return self._host[index]


def _bytes_of(storage: UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
