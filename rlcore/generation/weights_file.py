"""The check of a weights file before an engine loads it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from safetensors import safe_open

TIED_HEAD = "lm_head.weight"


def tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Name to shape of every tensor in a safetensors file. Reads the header alone.

    Raises:
        FileNotFoundError: there is no such file.
        SafetensorError: it is not a safetensors file, or cut short.
    """
    with safe_open(path, framework="pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def check_weights_file(path: Path, model_directory: Path) -> None:
    """Refuse a file that does not hold exactly the tensors of the model, in its names and shapes.

    A tied output head may be in the file or not.

    Raises:
        ValueError: tensors are missing, unknown, or of another shape. Names the first three of them.
    """
    expected: dict[str, tuple[int, ...]] = {}
    for checkpoint in sorted(model_directory.glob("*.safetensors")):
        expected |= tensor_shapes(checkpoint)
    found = tensor_shapes(path)
    if json.loads((model_directory / "config.json").read_text()).get("tie_word_embeddings"):
        expected.pop(TIED_HEAD, None)
        found.pop(TIED_HEAD, None)
    _refuse(path, model_directory, "lacks", expected.keys() - found.keys())
    _refuse(path, model_directory, "has unknown", found.keys() - expected.keys())
    other = {name for name, shape in found.items() if shape != expected[name]}
    _refuse(path, model_directory, "has in another shape", other)


def _refuse(path: Path, model_directory: Path, verb: str, names: Iterable[str]) -> None:
    if offending := sorted(names):
        some = ", ".join(offending[:3]) + (", …" if len(offending) > 3 else "")
        raise ValueError(f"{path} {verb} {len(offending)} tensors of the model {model_directory}: {some}")
