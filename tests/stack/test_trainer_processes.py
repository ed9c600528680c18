"""The trainer over several processes: two data-parallel ranks, and one that goes on where another stopped."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
import torch
from safetensors.torch import load_file

from rlcore.trainer.rank import TrainerRank
from rlcore.trainer.state import CheckpointFailed
from rlcore.trainer.updates import UpdateRefused
from tests.stack.training import Call, run_world, train_batch, trainer_config, trainers_in_this_process

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module", autouse=True)
def _world() -> Iterator[None]:
    with trainers_in_this_process():
        yield


def update(iteration: int) -> Call:
    return "update", (iteration, f"digest {iteration}", train_batch(rows=5, seed=iteration))


def largest_difference(ours: Path, theirs: Path) -> float:
    left, right = load_file(ours), load_file(theirs)
    assert left.keys() == right.keys()
    return max(float((left[name].float() - right[name].float()).abs().max()) for name in left)


def test_two_data_parallel_ranks_equal_one_and_one_goes_on_from_their_checkpoint(
    tiny_llama: Path, tmp_path: Path
) -> None:
    # A small step, because where a gradient is about 0 rounding decides the sign of AdamW's first steps.
    config, divided = (
        trainer_config(tiny_llama, trainer={"learning_rate": 1e-5, "world_size": ranks}) for ranks in (1, 2)
    )
    batch = train_batch(rows=5)
    lonely = ("update", (2, "digest 2", train_batch(rows=1)))
    script: list[Call] = [
        ("logprobs", (batch,)),
        update(1),
        lonely,
        ("export_weights", (str(tmp_path / "two"),)),
        ("save_checkpoint", (str(tmp_path / "checkpoint"),)),
        update(3),
        ("export_weights", (str(tmp_path / "three"),)),
    ]
    [first], [second] = run_world((TrainerRank, divided, script))
    trainer = TrainerRank(config)
    whole, *reports = [getattr(trainer, method)(*arguments) for method, arguments in script[:3]]
    trainer.export_weights(str(tmp_path / "one"))
    scores = pl.concat([first[0], second[0]]).sort("sample_id")
    assert scores["sample_id"].to_list() == whole["sample_id"].to_list()
    gap = scores["logprobs"].explode().to_torch() - whole["logprobs"].explode().to_torch()
    assert gap.abs().max() < 1e-5
    for ours, theirs, alone in zip(first[1:3], second[1:3], reports, strict=True):
        for name, value in alone["metrics"].items():
            if name != "tokens_per_second":
                assert ours["metrics"][name] == theirs["metrics"][name] == pytest.approx(value, rel=1e-4, abs=1e-6), (
                    name
                )
    assert (first[3], second[3]) == ((tmp_path / "two").stat().st_size, 0)
    assert largest_difference(tmp_path / "one", tiny_llama / "model.safetensors") > 0.0
    assert largest_difference(tmp_path / "two", tmp_path / "one") < 1e-6

    restored = TrainerRank(config)
    restored.load_checkpoint(str(tmp_path / "checkpoint"))
    restored.export_weights(str(tmp_path / "restored"))
    assert restored.policy_version() == 2
    assert largest_difference(tmp_path / "restored", tmp_path / "two") == 0.0
    # The moments are restored too: without them the next step would be the sign of its gradient.
    restored.update(*update(3)[1])
    restored.export_weights(str(tmp_path / "restored"))
    assert largest_difference(tmp_path / "restored", tmp_path / "three") < 1e-6


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_going_on_from_a_checkpoint_in_another_process_equals_never_having_stopped(
    tiny_llama: Path, tmp_path: Path, dtype: str
) -> None:
    config = trainer_config(tiny_llama, dtype, trainer={"weight_decay": 0.1}, algorithm={"ppo_epochs": 2})
    saved = str(tmp_path / "saved")
    trainer = TrainerRank(config)
    reports = [trainer.update(*update(iteration)[1]) for iteration in (1, 2)]
    trainer.save_checkpoint(saved)
    reports += [trainer.update(*update(iteration)[1]) for iteration in (3, 4)]
    trainer.export_weights(str(tmp_path / "uninterrupted"))
    export: Call = ("export_weights", (str(tmp_path / "resumed"),))
    script: list[Call] = [
        ("load_checkpoint", (saved,)),
        ("policy_version", ()),
        update(2),
        update(3),
        update(4),
        export,
    ]
    [[[_, version, *resumed, _]]] = run_world((TrainerRank, config, script))
    assert version == 2
    assert resumed[0] == reports[1]
    assert [report["metrics"]["grad_norm"] for report in resumed] == [
        report["metrics"]["grad_norm"] for report in reports[1:]
    ]
    assert largest_difference(tmp_path / "resumed", tmp_path / "uninterrupted") == 0.0


def test_loading_goes_back_and_keeps_the_configured_learning_rate(tiny_llama: Path, tmp_path: Path) -> None:
    saved, file = str(tmp_path / "saved"), tmp_path / "weights"
    trainer = TrainerRank(trainer_config(tiny_llama))
    trainer.update(*update(1)[1])
    trainer.save_checkpoint(saved)
    trainer.export_weights(str(tmp_path / "then"))
    trainer.update(*update(2)[1])
    trainer.load_checkpoint(saved)
    trainer.export_weights(str(file))
    assert trainer.policy_version() == 1
    assert largest_difference(file, tmp_path / "then") == 0.0
    with pytest.raises(UpdateRefused, match="update 1 was applied with batch digest 1"):
        trainer.update(1, "another", train_batch())

    slower = TrainerRank(trainer_config(tiny_llama, trainer={"learning_rate": 1e-6}))
    slower.load_checkpoint(saved)
    assert slower.update(*update(2)[1])["metrics"]["learning_rate"] == 1e-6
    slower.export_weights(str(file))
    assert 0 < largest_difference(file, tmp_path / "then") < 1e-4


def test_a_checkpoint_that_cannot_be_written_is_an_error_with_place_and_free_space(
    tiny_llama: Path, tmp_path: Path
) -> None:
    trainer = TrainerRank(trainer_config(tiny_llama))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(CheckpointFailed, match=r"saving .*saved \([0-9.]+ GB free there\): rank 0: "):
            trainer.save_checkpoint(str(tmp_path / "saved"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    trainer.save_checkpoint(str(tmp_path / "again"))
    trainer.load_checkpoint(str(tmp_path / "again"))


def test_a_process_is_in_one_world(tiny_llama: Path) -> None:
    TrainerRank(trainer_config(tiny_llama), trainable=False)
    with pytest.raises(ValueError, match="this process is rank 0 of 1, not 1 of 2"):
        TrainerRank(trainer_config(tiny_llama, trainer={"world_size": 2}), rank=1)
    assert torch.distributed.get_world_size() == 1
