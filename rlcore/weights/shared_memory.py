"""Buckets of weights in shared memory: written by the trainer, read by the engines of the same machine.

The memory has no name in any file system. It belongs to the process that writes, is reached by others through /proc,
and is gone with it, however that ends.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
import xxhash
from safetensors import safe_open
from torch import Tensor

from rlcore.weights.bucket import Bucket, TensorPlace

ALIGNMENT = 64
"""Bytes. Every dtype's views start where they may, and copies run at full speed."""


class WeightsDamaged(ValueError):
    """What was read is not what was written."""


def in_buckets(tensors: Iterable[tuple[str, Tensor]], capacity: int) -> Iterator[list[tuple[str, Tensor]]]:
    """The tensors in their order, as many together as are at most `capacity` bytes; one that is larger is alone."""
    together: list[tuple[str, Tensor]] = []
    total = 0
    for name, tensor in tensors:
        if together and total + tensor.nbytes > capacity:
            yield together
            together, total = [], 0
        together.append((name, tensor))
        total += tensor.nbytes
    if together:
        yield together


class SharedMemory:
    """Room for two buckets: one is read while the next is written."""

    def __init__(self) -> None:
        self._halves = (_Half(), _Half())
        self._written = 0

    def write(self, tensors: Sequence[tuple[str, Tensor]]) -> Bucket:
        """A bucket of these tensors, where the last but one was. They may be on any device."""
        half = self._halves[self._written % 2]
        self._written += 1
        return half.write(tensors)


class _Half:
    def __init__(self) -> None:
        self._file = os.memfd_create("rlvr-weights")
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def write(self, tensors: Sequence[tuple[str, Tensor]]) -> Bucket:
        starts, end = [], 0
        for _, tensor in tensors:
            starts.append(end)
            end += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        if end > self._bytes.nbytes:
            os.ftruncate(self._file, end)
            self._bytes = torch.frombuffer(mmap.mmap(self._file, end), dtype=torch.uint8)
        places = []
        for start, (name, tensor) in zip(starts, tensors, strict=True):
            room = self._bytes[start : start + tensor.nbytes]
            room.view(tensor.dtype).copy_(tensor.detach().reshape(-1))
            places.append(place_of(name, room.view(tensor.dtype).view(tensor.shape), start))
        return Bucket(f"/proc/{os.getpid()}/fd/{self._file}", tuple(places))


def place_of(name: str, tensor: Tensor, start: int = 0) -> TensorPlace:
    """Where a contiguous tensor in host memory is, with its checksum."""
    checksum = xxhash.xxh3_128_hexdigest(_bytes_of(tensor))
    return TensorPlace(name, _name_of(tensor.dtype), tuple(tensor.shape), start, tensor.nbytes, checksum)


def read_bucket(bucket: Bucket) -> Iterator[tuple[str, Tensor]]:
    """Its tensors, as views: they are what they are until the memory is written again.

    Raises:
        OSError: the memory cannot be reached: its process has ended, or is another machine's or user's.
        WeightsDamaged: a tensor's bytes are not those that were written. Names it.
    """
    if not bucket.tensors:
        return
    with Path(bucket.path).open("r+b") as file:
        memory = torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=torch.uint8)
    for place in bucket.tensors:
        part = memory[place.start : place.start + place.bytes]
        found = xxhash.xxh3_128_hexdigest(_bytes_of(part))
        if found != place.checksum:
            raise WeightsDamaged(
                f"{place.name} in {bucket.path} was damaged on its way: its checksum is {found}, not {place.checksum}"
            )
        yield place.name, part.view(getattr(torch, place.dtype)).view(place.shape)


def places_in_file(path: Path) -> Iterator[TensorPlace]:
    """The tensors of a safetensors file, with their checksums."""
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118
            yield place_of(name, file.get_tensor(name))


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.view(-1).view(torch.uint8).numpy().data


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
