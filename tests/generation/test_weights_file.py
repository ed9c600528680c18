"""Weights files are refused unless they hold the model's tensors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from rlcore.generation.weights_file import check_weights_file

WEIGHTS = {"model.embed_tokens.weight": torch.zeros(8, 4), "model.norm.weight": torch.zeros(4)}
HEAD = {"lm_head.weight": torch.zeros(8, 4)}


@pytest.fixture
def tied_model(tmp_path: Path) -> Path:
    return _model(tmp_path / "tied", WEIGHTS, tied=True)


def _model(directory: Path, weights: dict[str, torch.Tensor], *, tied: bool) -> Path:
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))
    for number, (name, tensor) in enumerate(weights.items()):
        save_file({name: tensor}, directory / f"model-{number}.safetensors")
    return directory


def _file(directory: Path, weights: dict[str, torch.Tensor]) -> Path:
    path = directory / "new.weights"
    save_file(weights, path)
    return path


def test_a_file_with_all_tensors_of_a_sharded_checkpoint_passes(tied_model: Path, tmp_path: Path) -> None:
    check_weights_file(_file(tmp_path, WEIGHTS), tied_model)


def test_a_tied_head_may_be_in_the_file(tied_model: Path, tmp_path: Path) -> None:
    check_weights_file(_file(tmp_path, WEIGHTS | HEAD), tied_model)


def test_an_untied_head_must_be_in_the_file(tmp_path: Path) -> None:
    untied = _model(tmp_path / "untied", WEIGHTS | HEAD, tied=False)
    with pytest.raises(ValueError, match=r"new\.weights lacks 1 tensors of the model .*untied: lm_head\.weight"):
        check_weights_file(_file(tmp_path, WEIGHTS), untied)


def test_an_unknown_tensor_is_named(tied_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has unknown 1 tensors .*: decoder\.norm\.weight"):
        check_weights_file(_file(tmp_path, WEIGHTS | {"decoder.norm.weight": torch.zeros(4)}), tied_model)


def test_a_tensor_of_another_shape_is_named(tied_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has in another shape 1 tensors .*: model\.norm\.weight"):
        check_weights_file(_file(tmp_path, WEIGHTS | {"model.norm.weight": torch.zeros(5)}), tied_model)


def test_a_file_that_was_cut_short_is_refused(tied_model: Path, tmp_path: Path) -> None:
    path = _file(tmp_path, WEIGHTS)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SafetensorError):
        check_weights_file(path, tied_model)


def test_a_missing_file_is_named(tied_model: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        check_weights_file(tmp_path / "absent", tied_model)
