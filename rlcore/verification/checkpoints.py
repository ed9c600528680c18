"""The checkpoints against their manifests."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.progress import track

from rlcore.trainer.checkpoint import MANIFEST, damage_of
from rlcore.verification.findings import reason

Manifest = TypeAdapter(dict[str, str])


def damages(checkpoint: Path, console: Console) -> list[str]:
    """What is wrong with a checkpoint, one text for each file that is; shows how far the reading has come."""
    manifest = checkpoint / MANIFEST
    if not manifest.is_file():
        return [f"has no {MANIFEST}, as a deletion leaves it that was interrupted"]
    try:
        files = Manifest.validate_json(manifest.read_bytes())
    except ValidationError as error:
        return [f"{manifest} (the sha256 of every file, in JSON) {reason(error)}"]
    description = f"reading checkpoint {checkpoint.name}"
    names = track(sorted(files), description, console=console, transient=True, disable=not console.is_terminal)
    return [f"{name} {damage}" for name in names if (damage := damage_of(checkpoint / name, files[name]))]
