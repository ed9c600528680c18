"""The checkpoints against their manifests."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.progress import track

from rlcore.trainer.checkpoint import MANIFEST, CheckpointDamaged, verify
from rlcore.verification.findings import reason

Manifest = TypeAdapter(dict[str, str])


def damages(checkpoint: Path, console: Console) -> list[str]:
    """What is wrong with a checkpoint, one text for each file that is; shows how far the reading has come."""
    manifest = checkpoint / MANIFEST
    if not manifest.is_file():
        return [f"has no {MANIFEST}, as a deletion leaves it that was interrupted"]
    try:
        names = sorted(Manifest.validate_json(manifest.read_bytes()))
    except ValidationError as error:
        return [f"{manifest} (the sha256 of every file, in JSON) {reason(error)}"]
    found = []
    description = f"reading checkpoint {checkpoint.name}"
    for name in track(names, description, console=console, transient=True, disable=not console.is_terminal):
        try:
            verify(checkpoint, within=name)
        except CheckpointDamaged as damage:
            # In the words of the run directory, and without the advice to who loads it.
            found.append(str(damage).replace(f"{checkpoint}/", "").rpartition(": ")[0])
    return found
