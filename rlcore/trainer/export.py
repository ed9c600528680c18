"""Weights out of the trainer, as Hugging Face names them."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from mbridge.core.bridge import Bridge
from megatron.core.models.gpt.gpt_model import GPTModel
from safetensors.torch import save_file

from rlcore.trainer.checkpoint import replace_directory

WEIGHTS = "model.safetensors"


def write_weights(model: GPTModel, bridge: Bridge, file: Path) -> int:
    """One safetensors file of all tensors, in the model's dtype, tied embeddings once; its size in bytes.

    The file appears under its name when it is complete.
    """
    tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in bridge.export_weights([model])}
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        save_file(tensors, partial, metadata={"format": "pt"})
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    return file.stat().st_size


def write_huggingface(model: GPTModel, bridge: Bridge, source: Path, directory: Path) -> None:
    """A Hugging Face model directory: these weights, and everything but weights of the directory `source`.

    The directory appears under its name when it is complete; one that was there is replaced.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        staging.chmod(0o755)
        for file in source.iterdir():
            if file.is_file() and ".safetensors" not in file.name:
                shutil.copy(file, staging)
        write_weights(model, bridge, staging / WEIGHTS)
        replace_directory(staging, directory)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
