"""An engine takes the tensors of its model, all of them and each once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rlcore.generation.weights_expected import ExpectedWeights

SHAPES = {"model.embed_tokens.weight": (8, 4), "model.norm.weight": (4,)}
HEAD = {"lm_head.weight": (8, 4)}


@pytest.fixture
def tied() -> ExpectedWeights:
    return ExpectedWeights("the model", SHAPES, tied=True)


def test_all_tensors_of_a_sharded_model_directory_in_any_order_are_complete(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": False}))
    for number, (name, shape) in enumerate((SHAPES | HEAD).items()):
        save_file({name: torch.zeros(shape)}, tmp_path / f"model-{number}.safetensors")
    expected = ExpectedWeights.of_model(tmp_path)
    for name, shape in reversed((SHAPES | HEAD).items()):
        with pytest.raises(ValueError, match="did not come"):
            expected.check_complete()
        expected.take({name: shape})
    expected.check_complete()


@pytest.mark.parametrize("head", [{}, HEAD])
def test_a_tied_head_may_come(tied: ExpectedWeights, head: dict[str, tuple[int, ...]]) -> None:
    tied.take(SHAPES | head)
    tied.check_complete()


def test_an_untied_head_must_come() -> None:
    expected = ExpectedWeights("the model", SHAPES | HEAD, tied=False)
    expected.take(SHAPES)
    with pytest.raises(ValueError, match=r"1 tensors did not come, of the model the model: lm_head\.weight"):
        expected.check_complete()


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"decoder.norm.weight": (4,)}, r"1 tensors are not of the model the model: decoder\.norm\.weight"),
        ({"model.norm.weight": (5,)}, r"1 tensors have another shape than in the model the model: model\.norm\.weight"),
        ({f"layers.{n}": (1,) for n in range(5)}, r"5 tensors are not of .*: layers\.0, layers\.1, layers\.2, …$"),
    ],
)
def test_what_is_not_the_models_is_named(
    tied: ExpectedWeights, shapes: dict[str, tuple[int, ...]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        tied.take(shapes)


def test_a_tensor_that_comes_twice_is_named(tied: ExpectedWeights) -> None:
    tied.take(SHAPES)
    with pytest.raises(ValueError, match=r"1 tensors came twice for the model the model: model\.norm\.weight"):
        tied.take({"model.norm.weight": (4,)})
