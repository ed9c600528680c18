"""What interrupted writes leave in a run directory. Nothing reads it."""

from __future__ import annotations

import re
from pathlib import Path

from rlcore.store import RunStore

TEMPORARY_FILE = re.compile(r"\..+-[a-z0-9_]{8}")
"""The name of a file before it is published (rlcore.store)."""

UNPUBLISHED_CHECKPOINT = re.compile(r"\.saving|\.\d{6}\.replaced")
"""A checkpoint that is being saved, or was replaced (rlcore.cluster.checkpoints, rlcore.trainer.checkpoint)."""

ABANDONED_AFTER = 600.0
"""Seconds without a write after which nobody writes any more."""


def leftovers(store: RunStore) -> list[Path]:
    """Files and directories that no finished write leaves, or that a write under way has not renamed yet.

    Raises:
        StoreError: the run is not on a file system.
    """
    run = store.directory
    files = [
        path
        for directory in (run, *run.glob("iterations/*"))
        for path in directory.iterdir()
        if path.is_file() and TEMPORARY_FILE.fullmatch(path.name)
    ]
    checkpoints = [path for path in run.glob("checkpoints/.*") if UNPUBLISHED_CHECKPOINT.fullmatch(path.name)]
    # Weights on their way to the engine, where shared memory has no room for them (rlcore.cluster.transfer).
    transfers = [path for path in run.glob("rlvr-*") if path.is_dir()]
    return sorted([*files, *checkpoints, *transfers])


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a directory."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def last_touched(path: Path) -> float:
    """Unix time at which a file, or anything in a directory, was written last."""
    return max(file.stat().st_mtime for file in (path, *path.rglob("*")))
