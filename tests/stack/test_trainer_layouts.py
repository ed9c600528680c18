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
from rlcore.trainer.critic import CriticRank
from rlcore.trainer.layout import Layout
from rlcore.trainer.learner import Learner
from rlcore.trainer.loading import UnsupportedModel, check_division
from rlcore.trainer.packing import RowLengths, pack
from rlcore.trainer.rank import TrainerRank
from rlcore.trainer.state import CheckpointFailed
from tests.stack.models import FAMILIES, save_tiny_model
from tests.stack.training import (
    Call,
    Script,
    dropped,
    run_world,
    train_batch,
    trainer_config,
    trainers_in_this_process,
)

pytestmark = pytest.mark.timeout(300)

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
CRITICS = {"critic-llama": "llama", "critic-qwen2": "qwen2"}
"""Critics of an untied and of a tied model, by what they are called here."""
LEARNERS = (*FAMILIES, *CRITICS)
UPDATES = 5
LEARNING_RATE = 1e-5
BUDGET = 54
"""Tokens of a micro-batch: room for one group of `uneven_batch`, not for two."""

Results = tuple[list[Any], dict[str, Tensor]]
"""What the calls of a script gave, and the weights after them (none of a critic)."""


def computes(layout: dict[str, Any], learner: str) -> bool:
    """Dense models have no experts to divide; Megatron divides experts' tensors only with the sequence."""
    dense = "moe" not in learner
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


def config(model: Path, layout: dict[str, Any], **sections: dict[str, Any]) -> Config:
    settings = {"learning_rate": LEARNING_RATE, "max_tokens_per_micro_batch": BUDGET, **layout}
    return trainer_config(model, "float32", trainer=settings, **sections)


def uneven_batch(seed: int) -> pl.DataFrame:
    """Three groups, so that of two ranks one has a micro-batch more than the other."""
    return train_batch(rows=12, group_size=4, response_lengths=(16, 10, 4, 1), seed=seed)


def script(models: dict[str, Path], learner: str, layout: dict[str, Any], directory: Path) -> Script:
    """Scores, updates (of rows that make uneven work, of one row, of none), and a policy's weights."""
    batches = [uneven_batch(seed) for seed in range(4)]
    batches += [train_batch(rows=1, seed=4), dropped(train_batch(seed=5))]
    critic = learner in CRITICS
    if critic:
        values = pl.col("old_logprobs").list.eval(pl.element() / 10)
        batches = [batch.with_columns(values=values) for batch in batches]
    updates: list[Call] = [("update", (step, str(step), batches[step])) for step in range(1, UPDATES + 1)]
    calls: list[Call] = [*updates, ("values" if critic else "logprobs", (batches[0],))]
    if critic:
        sections: dict[str, dict[str, Any]] = {
            "algorithm": {"adv_estimator": "gae"},
            "critic": {"learning_rate": LEARNING_RATE},
        }
        return CriticRank, config(models[CRITICS[learner]], layout, **sections), calls
    calls = [("logprobs", (batches[0],)), *calls, ("export_weights", (str(directory / "weights"),))]
    return TrainerRank, config(models[learner], layout, algorithm={"entropy_loss_coef": 0.01}), calls


def weights(directory: Path) -> dict[str, Tensor]:
    return load_file(directory / "weights") if (directory / "weights").exists() else {}


@pytest.fixture(scope="module")
def alone(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Results]:
    """What one rank gives."""
    results = {}
    for name in LEARNERS:
        directory = tmp_path_factory.mktemp("alone")
        kind, settings, calls = script(models, name, {}, directory)
        learner: Learner = kind(settings)
        results[name] = [getattr(learner, method)(*arguments) for method, arguments in calls], weights(directory)
    return results


@pytest.fixture(scope="module", params=LAYOUTS)
def divided(
    request: pytest.FixtureRequest, models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[list[list[Any]], dict[str, Tensor]]]:
    """What each rank of a layout gives, and the weights they export. One set of processes for all learners."""
    layout = LAYOUTS[request.param]
    directories = {name: tmp_path_factory.mktemp(name) for name in LEARNERS if computes(layout, name)}
    given = run_world(*(script(models, name, layout, directory) for name, directory in directories.items()))
    return {
        name: ([rank[number] for rank in given], weights(directory))
        for number, (name, directory) in enumerate(directories.items())
    }


@pytest.mark.parametrize("seed", range(4))
def test_two_ranks_have_uneven_work(seed: int) -> None:
    lengths = RowLengths.of(uneven_batch(seed))
    packed = [pack(range(12), lengths, share_prompts=True, budget=BUDGET, rank=rank, ranks=2) for rank in range(2)]
    assert len(packed[0]) != len(packed[1])


def assert_trained_alike(ours: Tensor, theirs: Tensor, name: str) -> None:
    """Within 2e-6, a fifth of a step, but for one weight in a thousand.

    Where a gradient is about 0, as those of a tied embedding's rare tokens are, rounding decides its sign, and with it
    the direction of AdamW's step.
    """
    difference = (ours - theirs).abs()
    assert difference.max() <= 2 * LEARNING_RATE * UPDATES, name
    assert (difference > 2e-6).float().mean() < 1e-3, name


def is_scores(result: Any) -> bool:
    return isinstance(result, pl.DataFrame)


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_divided_model_scores_and_trains_as_a_whole_one(
    alone: dict[str, Results], divided: dict[str, tuple[list[list[Any]], dict[str, Tensor]]], learner: str
) -> None:
    if learner not in divided:
        pytest.skip("not in this layout")
    results, whole = alone[learner]
    ranks, parts = divided[learner]
    for number, result in enumerate(results):
        given = [rank[number] for rank in ranks]
        if is_scores(result):
            [column] = set(result.columns) - {"sample_id"}
            joined = pl.concat(given)
            both = result.join(joined, on="sample_id", suffix="_divided", validate="1:1")
            assert len(joined) == len(both) == len(result)
            gap = both[column].explode().to_torch() - both[f"{column}_divided"].explode().to_torch()
            assert gap.abs().max() < 2e-5
        elif isinstance(result, dict):
            assert [report["optimizer_steps"] for report in given] == [result["optimizer_steps"]] * len(ranks)
            for report in given:
                assert report["metrics"]["learning_rate"] == result["metrics"]["learning_rate"]
                for name in result["metrics"].keys() - {"tokens_per_second"}:
                    value = report["metrics"][name]
                    assert value == pytest.approx(result["metrics"][name], rel=1e-3, abs=1e-5), name
        else:
            assert given == [result] + [0] * (len(ranks) - 1)
    assert parts.keys() == whole.keys()
    for name, weight in whole.items():
        assert_trained_alike(parts[name], weight, name)


@pytest.fixture(scope="module")
def saved(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint after one update of four ranks, tensor- and data-parallel; their weights then and after the next."""
    directory = tmp_path_factory.mktemp("saved")
    layout = {"world_size": 4, "tensor_model_parallel_size": 2}
    calls: list[Call] = [
        ("update", (1, "1", train_batch(seed=1))),
        ("save_checkpoint", (str(directory / "checkpoint"),)),
        ("export_weights", (str(directory / "loaded"),)),
        ("update", (2, "2", train_batch(seed=2))),
        ("export_weights", (str(directory / "trained"),)),
    ]
    run_world((TrainerRank, config(models["qwen3"], layout), calls))
    return directory


@pytest.mark.parametrize("load", ["pp2-vp2", "one rank"])
def test_a_checkpoint_goes_on_in_another_layout(
    models: dict[str, Path], saved: Path, tmp_path: Path, load: str
) -> None:
    layout = LAYOUTS.get(load, {})
    calls: list[Call] = [
        ("load_checkpoint", (str(saved / "checkpoint"),)),
        ("export_weights", (str(tmp_path / "loaded"),)),
        ("update", (2, "2", train_batch(seed=2))),
        ("export_weights", (str(tmp_path / "trained"),)),
    ]
    run_world((TrainerRank, config(models["qwen3"], layout), calls))
    loaded, trained = ((load_file(tmp_path / name), load_file(saved / name)) for name in ("loaded", "trained"))
    for ours, theirs in (loaded, trained):
        assert ours.keys() == theirs.keys()
    for name, tensor in loaded[0].items():
        assert torch.equal(tensor, loaded[1][name]), name
        assert_trained_alike(trained[0][name], trained[1][name], name)


def test_one_rank_saves_for_several_where_it_is_told_to(models: dict[str, Path], tmp_path: Path) -> None:
    settings = config(models["qwen3"], {"reshardable_checkpoints": True})
    trainer = TrainerRank(settings)
    trainer.update(1, "1", train_batch(seed=1))
    (tmp_path / "checkpoint").mkdir()
    trainer.save_checkpoint(str(tmp_path / "checkpoint"))
    trainer.export_weights(str(tmp_path / "one"))
    calls: list[Call] = [
        ("load_checkpoint", (str(tmp_path / "checkpoint"),)),
        ("export_weights", (str(tmp_path / "two"),)),
    ]
    run_world((TrainerRank, config(models["qwen3"], LAYOUTS["tp2"]), calls))
    one, two = load_file(tmp_path / "one"), load_file(tmp_path / "two")
    assert one.keys() == two.keys()
    assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (LAYOUTS["tp2"], "saved by ranks that each held the whole model"),
        (LAYOUTS["ep2"], "saved by ranks that each held the whole model"),
    ],
)
def test_what_cannot_be_loaded_in_another_layout_says_so(
    models: dict[str, Path], tmp_path: Path, layout: dict[str, Any], message: str
) -> None:
    trainer = TrainerRank(config(models["llama"], {}))
    trainer.save_checkpoint(str(tmp_path))
    # What a rank of that layout would see: the check comes before any rank reads.
    trainer.settings = config(models["llama"], layout).trainer
    with pytest.raises(CheckpointFailed, match=message):
        trainer.load_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    ("family", "layout", "message"),
    [
        ("llama", {"world_size": 3, "tensor_model_parallel_size": 3}, "num_attention_heads 4 cannot be divided by"),
        ("llama", {"world_size": 8, "pipeline_model_parallel_size": 8}, "num_hidden_layers 4 cannot be divided by"),
        ("qwen3-moe", {"world_size": 2, "tensor_model_parallel_size": 2}, "need trainer.sequence_parallel=true"),
        ("qwen3-moe", {"world_size": 3, "expert_model_parallel_size": 3}, "num_experts 4 cannot be divided by expert"),
    ],
)
def test_a_model_that_cannot_be_divided_so_is_refused_with_the_numbers(
    models: dict[str, Path], family: str, layout: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        check_division(AutoConfig.from_pretrained(models[family]), Layout(**layout), models[family])
