"""A run's model for everybody else: a Hugging Face directory with a model card."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from rlcore.model_card import model_card
from rlcore.store import RunStore
from rlcore.tracking.history import read_history
from rlcore.trainer.checkpoint import HUGGINGFACE, published, replace_directory, verify

CARD = "README.md"


class ExportRefused(ValueError):
    """There is no such model to export, or no place for it."""


def export_model(store: RunStore, iteration: int | None, directory: Path) -> int:
    """Write weights, tokenizer with chat template, and model card to a new directory; the iteration they are of.

    The directory appears under its name when it is complete.

    Args:
        iteration: one with a checkpoint; None: the newest that has one.

    Raises:
        ExportRefused: that iteration has no checkpoint, or the directory is not empty.
        CheckpointDamaged: a file of the model is not the one that was saved.
    """
    checkpoints = {int(path.name): path for path in published(store.directory / "checkpoints")}
    if not checkpoints:
        raise ExportRefused(f"{store.url} has no checkpoint yet: save_steps says when one is saved")
    number = max(checkpoints) if iteration is None else iteration
    if number not in checkpoints:
        there = ", ".join(map(str, sorted(checkpoints)))
        raise ExportRefused(f"{store.url} has no checkpoint of iteration {number}; there are: {there}")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ExportRefused(f"{directory} is there and not empty: give a new directory")
    verify(checkpoints[number], within=HUGGINGFACE)
    directory.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        staging.chmod(0o755)
        shutil.copytree(checkpoints[number] / HUGGINGFACE, staging, dirs_exist_ok=True)
        (staging / CARD).write_text(model_card(read_history(store.directory), number))
        replace_directory(staging, directory)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return number
