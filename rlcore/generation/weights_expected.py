"""Which tensors an engine needs for an update."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from safetensors import safe_open

TIED_HEAD = "lm_head.weight"

Shape = tuple[int, ...]


class ExpectedWeights:
    """The tensors of a model that have not come yet. A tied output head may come or not."""

    def __init__(self, model: str, shapes: Mapping[str, Shape], *, tied: bool) -> None:
        """
        Args:
            model: for people.
        """
        self._model = model
        self._shapes = dict(shapes)
        self._tied = tied
        if tied:
            self._shapes.pop(TIED_HEAD, None)
        self._missing = set(self._shapes)

    @classmethod
    def of_model(cls, directory: Path) -> ExpectedWeights:
        """Those of a Hugging Face model directory. Reads the headers of its files alone."""
        shapes: dict[str, Shape] = {}
        for checkpoint in sorted(directory.glob("*.safetensors")):
            with safe_open(checkpoint, framework="pt") as file:
                names = file.keys()
                shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in names}
        tied = json.loads((directory / "config.json").read_text()).get("tie_word_embeddings", False)
        return cls(str(directory), shapes, tied=tied)

    def take(self, shapes: Mapping[str, Shape]) -> None:
        """These have come.

        Raises:
            ValueError: some are not the model's, of another shape than the model's, or came before. Names three.
        """
        found = {name: shape for name, shape in shapes.items() if not (self._tied and name == TIED_HEAD)}
        self._refuse("are not of", found.keys() - self._shapes.keys())
        self._refuse("have another shape than in", (name for name in found if found[name] != self._shapes[name]))
        self._refuse("came twice for", found.keys() - self._missing)
        self._missing -= found.keys()

    def check_complete(self) -> None:
        """
        Raises:
            ValueError: some have not come. Names three.
        """
        self._refuse("did not come, of", self._missing)

    def _refuse(self, what: str, names: Iterable[str]) -> None:
        if offending := sorted(names):
            some = ", ".join(offending[:3]) + (", …" if len(offending) > 3 else "")
            raise ValueError(f"{len(offending)} tensors {what} the model {self._model}: {some}")
