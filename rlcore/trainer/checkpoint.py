"""Directories that exist whole or not at all, with a MANIFEST of every file's sha256."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

logger = logging.getLogger(__name__)

MANIFEST = "MANIFEST"

HUGGINGFACE = "huggingface"
"""Folder of a checkpoint that transformers and vLLM load."""

WEIGHTS = "model.safetensors"
"""File of that folder."""


class CheckpointDamaged(RuntimeError):
    """A file of a checkpoint is missing, or not the one that was saved."""


def publish(staging: str | Path, final: str | Path) -> None:
    """Give a finished staging directory its MANIFEST and its name. A directory of that name is replaced.

    `staging` must be on the same file system as `final`. After a crash there is either the old `final` or the new
    one, or, between two renames, none.
    """
    staging, final = Path(staging), Path(final)
    files = {str(path.relative_to(staging)): sha256_of(path) for path in _files(staging)}
    manifest = staging / MANIFEST
    manifest.write_text(json.dumps(files, indent=1, sort_keys=True))
    replace_directory(staging, final)


def replace_directory(staging: Path, final: Path) -> None:
    """Rename `staging` to `final`, durably: every file reaches the disk first. What `final` was is deleted."""
    sync_directory(staging)
    final.parent.mkdir(parents=True, exist_ok=True)
    replaced = _set_aside(final) if final.exists() else None
    staging.rename(final)
    if replaced is not None:
        shutil.rmtree(replaced)
    _fsync(final.parent)


def sync_directory(directory: Path) -> None:
    """Have everything in it reach the disk."""
    for path in (*_files(directory), *(path for path in directory.rglob("*") if path.is_dir()), directory):
        _fsync(path)


def delete_directory(directory: Path) -> None:
    """Delete it whole or not at all: half a checkpoint would look like a damaged one."""
    shutil.rmtree(_set_aside(directory))


def _set_aside(directory: Path) -> Path:
    aside = directory.with_name(f".{directory.name}.replaced")
    shutil.rmtree(aside, ignore_errors=True)
    return directory.rename(aside)


def published(directory: str | Path) -> list[Path]:
    """The checkpoints of a directory in the order of their names (zero-padded iterations): the newest is the last."""
    return sorted(manifest.parent for manifest in Path(directory).glob(f"[!.]*/{MANIFEST}"))


def newest_good(checkpoints: Iterable[Path]) -> Path | None:
    """The newest of some published checkpoints whose files are what was saved; None of none.

    One that is damaged is passed over for the one before it, with a warning that names the file.

    Raises:
        CheckpointDamaged: all of them are; names a file of each.
    """
    damages = []
    for checkpoint in sorted(checkpoints, reverse=True):
        try:
            verify(checkpoint)
        except CheckpointDamaged as damage:
            logger.warning("checkpoint %s is refused: %s", checkpoint.name, damage)
            damages.append(str(damage))
            continue
        return checkpoint
    if damages:
        raise CheckpointDamaged("no checkpoint is good: " + "; ".join(damages))
    return None


def verify(path: str | Path, within: str = "") -> None:
    """Check the files of a published checkpoint against its MANIFEST.

    Args:
        within: only those in this folder of it.

    Raises:
        CheckpointDamaged: no MANIFEST, or a file is missing or has another digest; names file and digests.
    """
    path = Path(path)
    manifest = path / MANIFEST
    if not manifest.is_file():
        raise CheckpointDamaged(f"{path} has no {MANIFEST}: it was never finished, take another checkpoint")
    try:
        files = json.loads(manifest.read_bytes())
    except ValueError as error:
        raise CheckpointDamaged(f"{manifest} is not JSON ({error}): take another checkpoint") from None
    for name, expected in files.items():
        if Path(name).is_relative_to(within) and (damage := damage_of(path / name, expected)):
            raise CheckpointDamaged(f"{path / name} {damage}: take another checkpoint")


def damage_of(file: Path, expected: str) -> str | None:
    """What is wrong with a file whose sha256 in MANIFEST is `expected`, in words that follow its name."""
    if not file.is_file():
        return f"is missing (sha256 {expected} in {MANIFEST})"
    found = sha256_of(file)
    return None if found == expected else f"has sha256 {found}, {MANIFEST} says {expected}"


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def sha256_of(path: Path) -> str:
    """The digest of a file, which need not fit into memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
