"""What a bucket of weights is: some tensors of a model, in memory that another process can read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """One tensor in a bucket's memory, contiguous."""

    name: str
    """Hugging Face's."""
    dtype: str
    """PyTorch's name, without `torch.`."""
    shape: tuple[int, ...]
    start: int
    bytes: int
    checksum: str
    """XXH3, 128 bits, of its bytes; hexadecimal."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors in one piece of memory. They stay there until the next bucket but one is written."""

    path: str
    tensors: tuple[TensorPlace, ...]

    @property
    def bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors)

    def to_dict(self) -> dict[str, Any]:
        """Of dicts, lists, strings and numbers alone."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Bucket:
        tensors = tuple(TensorPlace(**tensor | {"shape": tuple(tensor["shape"])}) for tensor in value["tensors"])
        return cls(value["path"], tensors)


def weights_sha256(tensors: Iterable[TensorPlace]) -> str:
    """One digest of a model's tensors, in whichever order and buckets they are."""
    lines = sorted(f"{tensor.name} {tensor.dtype} {list(tensor.shape)} {tensor.checksum}" for tensor in tensors)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
