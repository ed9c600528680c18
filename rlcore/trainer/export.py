"""Weights out of the trainer, as Hugging Face names them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from mbridge.core.bridge import Bridge
from megatron.core.models.gpt.gpt_model import GPTModel
from safetensors.torch import save_file
from torch import Tensor

from rlcore.trainer.checkpoint import WEIGHTS, replace_directory


def exported(pieces: Sequence[GPTModel], bridge: Bridge) -> Iterator[tuple[str, Tensor]]:
    """All tensors of the model, in its dtype, under their Hugging Face names. All ranks go through them together."""
    names = set()
    for name, tensor in bridge.export_weights(list(pieces)):
        # Embeddings that are tied over pipeline stages are on two of them.
        if name not in names:
            names.add(name)
            yield name, tensor


def write_weights(pieces: Sequence[GPTModel], bridge: Bridge, file: Path, *, writes: bool) -> int:
    """One safetensors file of all tensors, in the model's dtype, tied embeddings once; its size in bytes.

    All ranks call it together, with their pieces of the model; the one that `writes` does, the others return 0. The
    file appears under its name when it is complete.
    """
    if not writes:
        for _ in exported(pieces, bridge):
            pass
        return 0
    tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in exported(pieces, bridge)}
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        save_file(tensors, partial, metadata={"format": "pt"})
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    return file.stat().st_size


def write_huggingface(
    pieces: Sequence[GPTModel], bridge: Bridge, source: Path, directory: Path, *, writes: bool
) -> None:
    """A Hugging Face model directory: these weights, and everything but weights of the directory `source`.

    All ranks call it together; the one that `writes` does. The directory appears under its name when it is complete;
    one that was there is replaced.
    """
    if not writes:
        write_weights(pieces, bridge, directory / WEIGHTS, writes=False)
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        staging.chmod(0o755)
        for file in source.iterdir():
            if file.is_file() and ".safetensors" not in file.name:
                shutil.copy(file, staging)
        write_weights(pieces, bridge, staging / WEIGHTS, writes=True)
        replace_directory(staging, directory)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
