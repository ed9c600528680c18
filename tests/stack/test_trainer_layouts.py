"""A model divided over ranks, whichever way, is the model on one rank. Tiny random models of every family."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig

from rlcore.config import Config
from rlcore.trainer.layout import Layout
from rlcore.trainer.loading import UnsupportedModel, check_division
from rlcore.trainer.rank import TrainerRank
from tests.stack.models import FAMILIES, save_tiny_model
from tests.stack.training import Call, run_world, train_batch, trainer_config, trainers_in_this_process

pytestmark = pytest.mark.timeout(300)

Alone = tuple[list[Any], dict[str, Tensor]]

LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2": {"world_size": 2, "tensor_model_parallel_size": 2},
    "tp2-sp": {"world_size": 2, "tensor_model_parallel_size": 2, "sequence_parallel": True},
    "pp2": {"world_size": 2, "pipeline_model_parallel_size": 2},
    "pp2-vp2": {"world_size": 2, "pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2},
    "dp2": {"world_size": 2},
    "cp2": {"world_size": 2, "context_parallel_size": 2},
    "tp2-pp2": {"world_size": 4, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2},
    "ep2": {"world_size": 2, "expert_model_parallel_size": 2},
}


def computes(layout: dict[str, Any], family: str) -> bool:
    """Dense models have no experts to divide; Megatron divides experts' tensors only with the sequence."""
    dense = "moe" not in family
    if "expert_model_parallel_size" in layout:
        return not dense
    return dense or "tensor_model_parallel_size" not in layout or "sequence_parallel" in layout


@pytest.fixture(scope="module", autouse=True)
def _world() -> Iterator[None]:
    with trainers_in_this_process():
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> dict[str, Path]:
    """Directories by family."""
    return {
        family: save_tiny_model(family, tmp_path_factory.mktemp(family), tokenizer_from=smollm2) for family in FAMILIES
    }


def config(model: Path, layout: dict[str, Any]) -> Config:
    # A small step, because where a gradient is about 0 rounding decides the sign of AdamW's first steps.
    settings = {"learning_rate": 1e-5, "max_tokens_per_micro_batch": 64, **layout}
    return trainer_config(model, trainer=settings, algorithm={"entropy_loss_coef": 0.01})


def script(directory: Path) -> list[Call]:
    batch = train_batch(rows=8, group_size=4)
    updates = [("update", (step, str(step), train_batch(rows=8, group_size=4, seed=step))) for step in (1, 2, 3)]
    return [("logprobs", (batch,)), *updates, ("export_weights", (str(directory / "weights"),))]


@pytest.fixture(scope="module")
def alone(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Alone]:
    """What one rank gives, and its weights after three updates, by family."""
    results = {}
    for family, model in models.items():
        directory = tmp_path_factory.mktemp("alone")
        trainer = TrainerRank(config(model, {}))
        given = [getattr(trainer, method)(*arguments) for method, arguments in script(directory)]
        results[family] = given, load_file(directory / "weights")
    return results


@pytest.fixture(scope="module", params=LAYOUTS)
def divided(
    request: pytest.FixtureRequest, models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[list[list[Any]], dict[str, Tensor]]]:
    """What each rank of a layout gives, and the weights they export, by family. One set of processes for all."""
    layout = LAYOUTS[request.param]
    families = [family for family in models if computes(layout, family)]
    directories = {family: tmp_path_factory.mktemp(family) for family in families}
    given = run_world(
        TrainerRank, [(config(models[family], layout), script(directories[family])) for family in families]
    )
    return {
        family: ([rank[number] for rank in given], load_file(directories[family] / "weights"))
        for number, family in enumerate(families)
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_a_divided_model_scores_and_trains_as_a_whole_one(
    alone: dict[str, Alone], divided: dict[str, tuple[list[list[Any]], dict[str, Tensor]]], family: str
) -> None:
    if family not in divided:
        pytest.skip("not in this layout")
    [scores, *reports, size], weights = alone[family]
    ranks, divided_weights = divided[family]
    joined = pl.concat([given[0] for given in ranks])
    both = scores.join(joined, on="sample_id", suffix="_divided", validate="1:1")
    assert len(joined) == len(both) == len(scores)
    gap = both["logprobs"].explode().to_torch() - both["logprobs_divided"].explode().to_torch()
    assert gap.abs().max() < 2e-5
    for given in ranks:
        for divided_report, report in zip(given[1:4], reports, strict=True):
            for name in report["metrics"].keys() - {"tokens_per_second"}:
                both_values = divided_report["metrics"][name], report["metrics"][name]
                assert both_values[0] == pytest.approx(both_values[1], rel=1e-3, abs=1e-5), name
    assert [given[4] for given in ranks] == [size] + [0] * (len(ranks) - 1)
    assert divided_weights.keys() == weights.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(divided_weights[name], weight, rtol=0, atol=2e-6, msg=name)


@pytest.mark.parametrize("load", ["pp2-vp2", "dp2", "one rank"])
def test_a_checkpoint_goes_on_in_another_layout(
    models: dict[str, Path], saved: Path, tmp_path: Path, load: str
) -> None:
    layout = LAYOUTS.get(load, {})
    going_on: list[Call] = [
        ("load_checkpoint", (str(saved / "checkpoint"),)),
        ("export_weights", (str(tmp_path / "loaded"),)),
        ("update", (2, "2", train_batch(seed=2))),
        ("export_weights", (str(tmp_path / "trained"),)),
    ]
    run_world(TrainerRank, [(config(models["qwen3"], layout), going_on)])
    for name, tolerance in (("loaded", 0.0), ("trained", 2e-6)):
        ours, theirs = load_file(tmp_path / name), load_file(saved / name)
        assert ours.keys() == theirs.keys()
        for tensor in ours:
            torch.testing.assert_close(ours[tensor], theirs[tensor], rtol=0, atol=tolerance, msg=tensor)


@pytest.fixture(scope="module")
def saved(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of four ranks after one update, and their weights then and after the next."""
    directory = tmp_path_factory.mktemp("saved")
    (directory / "checkpoint").mkdir()
    script: list[Call] = [
        ("update", (1, "1", train_batch(seed=1))),
        ("save_checkpoint", (str(directory / "checkpoint"),)),
        ("export_weights", (str(directory / "loaded"),)),
        ("update", (2, "2", train_batch(seed=2))),
        ("export_weights", (str(directory / "trained"),)),
    ]
    run_world(TrainerRank, [(config(models["qwen3"], LAYOUTS["tp2-pp2"]), script)])
    return directory


@pytest.mark.parametrize(
    ("family", "layout", "message"),
    [
        (
            "llama",
            {"world_size": 3, "tensor_model_parallel_size": 3},
            "num_attention_heads 4 cannot be divided by",
        ),
        (
            "llama",
            {"world_size": 8, "pipeline_model_parallel_size": 8},
            "num_hidden_layers 4 cannot be divided by",
        ),
        ("qwen3-moe", {"world_size": 2, "tensor_model_parallel_size": 2}, "need trainer.sequence_parallel=true"),
        ("qwen3-moe", {"world_size": 3, "expert_model_parallel_size": 3}, "num_experts 4 cannot be divided by expert"),
    ],
)
def test_a_model_that_cannot_be_divided_so_is_refused_with_the_numbers(
    models: dict[str, Path], family: str, layout: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        check_division(AutoConfig.from_pretrained(models[family]), Layout(**layout), models[family])
