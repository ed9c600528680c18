"""Disks of a few KiB that a test can fill or make read-only, where this machine lets us mount them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(directory: Path, kibibytes: int) -> Iterator[None]:
    """A tmpfs at the directory; skips the test where it cannot be mounted."""
    _mount("-t", "tmpfs", "-o", f"size={kibibytes}k", "tmpfs", str(directory))
    try:
        yield
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def make_read_only(disk: Path) -> None:
    _mount("-o", "remount,ro", str(disk))


def fill(disk: Path) -> Path:
    """Take all its space; the file that has it."""
    filler = disk / "filler"
    try:
        with open(filler, "wb", buffering=0) as file:
            while file.write(bytes(4096)) == 4096:
                pass
    except OSError:
        pass
    return filler


def _mount(*arguments: str) -> None:
    mounted = subprocess.run(["mount", *arguments], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a disk here: {mounted.stderr.decode().strip()}")
