"""The critic: its values, its updates, and that each is applied once. On a tiny random Llama."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import Tensor
from transformers import AutoModel

from rlcore.batches import TrainBatch, ValueBatch, validate
from rlcore.config import Config
from rlcore.reports import UpdateReport
from rlcore.trainer.critic import CriticRank
from rlcore.trainer.loading import UnsupportedModel
from rlcore.trainer.rank import TrainerRank
from rlcore.trainer.updates import UpdateRefused
from tests.stack.conftest import save_tiny_llama
from tests.stack.training import Call, dropped, run_world, train_batch, trainer_config, trainers_in_this_process

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module", autouse=True)
def _world() -> Iterator[None]:
    with trainers_in_this_process():
        yield


def critic_config(model: Path, dtype: str = "float32", **sections: dict[str, Any]) -> Config:
    sections["algorithm"] = {"adv_estimator": "gae"} | sections.get("algorithm", {})
    sections["critic"] = {"learning_rate": 1e-3} | sections.get("critic", {})
    return trainer_config(model, dtype, **sections)


def with_values(batch: pl.DataFrame, critic: CriticRank) -> pl.DataFrame:
    """The batch as the critic sees it now."""
    return validate(batch.with_columns(values=critic.values(batch)["values"]), TrainBatch)


def with_a_head(critic: CriticRank, seed: int = 0) -> Tensor:
    """Gives the critic a random head, as if it had trained; the head (1, H)."""
    head = torch.randn(critic.pieces[0].value_head.weight.shape, generator=torch.Generator().manual_seed(seed)) / 10
    with torch.no_grad():
        critic.pieces[0].value_head.weight.copy_(head)
    return head


def weights(critic: CriticRank) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in critic.pieces[0].named_parameters()}


def gradients(critic: CriticRank) -> dict[str, Tensor]:
    """What the last step stepped on, after clipping, by Megatron's names."""
    return {name: parameter.main_grad.clone() for name, parameter in critic.pieces[0].named_parameters()}


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float = 0.0) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert (tensor - theirs[name]).abs().max() <= tolerance, name


def largest_difference(ours: pl.Series, theirs: pl.Series) -> float:
    return float((ours.explode().to_torch() - theirs.explode().to_torch()).abs().max())


def hugging_face_values(model: Path, batch: pl.DataFrame, head: Tensor) -> pl.Series:
    """head · hidden state of the position before each response token, one row at a time."""
    decoder = AutoModel.from_pretrained(model, dtype=torch.float32)
    rows = []
    for prompt, response in batch.select("prompt_ids", "response_ids").iter_rows():
        with torch.no_grad():
            hidden = decoder(torch.tensor([prompt + response])).last_hidden_state[0, len(prompt) - 1 : -1]
        rows.append((hidden @ head[0]).tolist())
    return pl.Series("values", rows, dtype=pl.List(pl.Float32))


@pytest.mark.parametrize("budget", [4096, 64])
def test_values_equal_hugging_face_on_ragged_rows(tiny_llama: Path, budget: int) -> None:
    critic = CriticRank(critic_config(tiny_llama, trainer={"max_tokens_per_micro_batch": budget}))
    head = with_a_head(critic)
    batch = train_batch(rows=6)
    ours = validate(critic.values(batch), ValueBatch)
    assert ours["sample_id"].to_list() == batch["sample_id"].to_list()
    assert ours["values"].list.len().to_list() == batch["response_ids"].list.len().to_list()
    assert largest_difference(ours["values"], hugging_face_values(tiny_llama, batch, head)) < 1e-4


def test_an_untrained_critic_values_every_state_0(tiny_llama: Path) -> None:
    values = CriticRank(critic_config(tiny_llama)).values(train_batch())["values"]
    assert values.explode().unique().to_list() == [0.0]


def test_the_critic_may_start_from_a_model_of_its_own(tiny_llama: Path, smollm2: Path, tmp_path: Path) -> None:
    other = save_tiny_llama(tmp_path, tokenizer_from=smollm2, seed=1)
    critic = CriticRank(critic_config(tiny_llama, critic={"path": str(other)}))
    head, batch = with_a_head(critic), train_batch(rows=2)
    values = critic.values(batch)["values"]
    assert largest_difference(values, hugging_face_values(other, batch, head)) < 1e-4
    assert largest_difference(values, hugging_face_values(tiny_llama, batch, head)) > 1e-2


def test_a_critic_that_is_not_there_is_named_by_its_key(tiny_llama: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"critic\.path: .*missing is not a Hugging Face model directory"):
        CriticRank(critic_config(tiny_llama, critic={"path": str(tmp_path / "missing")}))


def test_a_critic_of_another_vocabulary_is_refused(tiny_llama: Path, smollm2: Path, tmp_path: Path) -> None:
    other = save_tiny_llama(tmp_path, tokenizer_from=smollm2, seed=1, vocab_size=49280)
    with pytest.raises(UnsupportedModel, match="a vocabulary of 49280 tokens, the policy one of 49152"):
        CriticRank(critic_config(tiny_llama, critic={"path": str(other)}))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_learns_constant_returns(tiny_llama: Path, dtype: str) -> None:
    critic = CriticRank(critic_config(tiny_llama, dtype, critic={"epochs": 2, "value_clip": None}))
    batch = train_batch(advantages=(0.7,))
    losses = []
    for iteration in range(1, 9):
        report = UpdateReport.model_validate(critic.update(iteration, f"{iteration}", with_values(batch, critic)))
        assert report.optimizer_steps == 2
        losses.append(report.metrics["value_loss"])
    assert losses[-1] < 0.05 * losses[0]
    assert critic.values(batch)["values"].explode().to_torch().mean() == pytest.approx(0.7, abs=0.1)


def test_the_first_report_is_of_returns_against_values_of_0(tiny_llama: Path) -> None:
    critic = CriticRank(critic_config(tiny_llama))
    batch = with_values(train_batch(), critic)
    report = UpdateReport.model_validate(critic.update(1, "digest", batch))
    returns = batch["returns"].explode().to_torch()
    assert report.metrics["value_loss"] == pytest.approx(float(returns.square().mean() / 2), rel=1e-5)
    assert report.metrics["return_mean"] == pytest.approx(float(returns.mean()), rel=1e-5)
    assert report.metrics["value_mean"] == 0.0
    assert report.metrics["num_tokens"] == len(returns)
    assert report.metrics["grad_norm"] > 0.0
    second = critic.update(2, "again", with_values(batch, critic))["metrics"]
    assert second["value_loss"] < report.metrics["value_loss"]
    assert second["value_mean"] != 0.0


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_micro_batches_do_not_change_the_gradient(tiny_llama: Path, mode: str) -> None:
    results = []
    for budget in (4096, 60):
        critic = CriticRank(
            critic_config(tiny_llama, trainer={"max_tokens_per_micro_batch": budget}, algorithm={"loss_agg_mode": mode})
        )
        with_a_head(critic)
        report = critic.update(1, "digest", with_values(train_batch(), critic))
        results.append((gradients(critic), report["metrics"]))
    (whole, whole_metrics), (split, split_metrics) = results
    assert_close(split, whole, 1e-6)
    for name in whole_metrics.keys() - {"tokens_per_second"}:
        assert split_metrics[name] == pytest.approx(whole_metrics[name], rel=1e-4, abs=1e-6), name


def test_rows_that_do_not_train_change_nothing(tiny_llama: Path) -> None:
    kept, nothing = train_batch(rows=4), dropped(train_batch(rows=3, seed=1))
    trained = []
    for batch in (kept, pl.concat([nothing, kept])):
        critic = CriticRank(critic_config(tiny_llama))
        critic.update(1, "digest", with_values(batch, critic))
        trained.append(weights(critic))
    assert_close(trained[0], trained[1])


def test_two_data_parallel_ranks_equal_one(tiny_llama: Path) -> None:
    # A small step, because where a gradient is about 0 rounding decides the sign of AdamW's first steps.
    config = critic_config(tiny_llama, critic={"learning_rate": 1e-5}, algorithm={"mini_batches": 2})
    critic = CriticRank(config)
    first, second = (with_values(train_batch(rows=5, seed=seed), critic) for seed in (1, 2))
    script: list[Call] = [("update", (1, "1", first)), ("update", (2, "2", second)), ("values", (first,))]
    *reports, values = [getattr(critic, method)(*arguments) for method, arguments in script]
    two = config.model_copy(update={"trainer": config.trainer.model_copy(update={"world_size": 2})})
    [ours], [theirs] = run_world((CriticRank, two, script))
    for left, right, alone in zip(ours[:2], theirs[:2], reports, strict=True):
        assert left["optimizer_steps"] == right["optimizer_steps"] == 2
        for name in alone["metrics"].keys() - {"tokens_per_second"}:
            both = left["metrics"][name], right["metrics"][name]
            assert both[0] == both[1] == pytest.approx(alone["metrics"][name], rel=1e-3, abs=1e-6), name
    joined = pl.concat([ours[2], theirs[2]]).sort("sample_id")
    assert largest_difference(joined["values"], values["values"]) < 1e-5


def test_an_update_is_applied_once_and_in_order(tiny_llama: Path) -> None:
    critic = CriticRank(critic_config(tiny_llama))
    batch = with_values(train_batch(), critic)
    first = critic.update(1, "digest", batch)
    once = weights(critic)
    assert critic.update(1, "digest", batch) == first
    with pytest.raises(UpdateRefused, match="update 1 was applied with batch digest, not another"):
        critic.update(1, "another", batch)
    with pytest.raises(UpdateRefused, match="update 3 is out of order: the next one is 2"):
        critic.update(3, "third", batch)
    assert critic.policy_version() == 1
    assert_close(weights(critic), once)


def test_returns_that_are_not_finite_change_no_weight(tiny_llama: Path) -> None:
    critic = CriticRank(critic_config(tiny_llama))
    before, batch = weights(critic), with_values(train_batch(), critic)
    endless = batch.with_columns(pl.col("returns").list.eval(pl.element() * 1e38 * 1e38))
    report = critic.update(1, "endless", endless)
    assert (report["optimizer_steps"], report["metrics"]["skipped_steps"], critic.policy_version()) == (0, 1, 1)
    assert_close(weights(critic), before)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_going_on_from_a_checkpoint_equals_never_having_stopped(tiny_llama: Path, tmp_path: Path, dtype: str) -> None:
    config = critic_config(tiny_llama, dtype, critic={"epochs": 2}, algorithm={"mini_batches": 2})
    saved = str(tmp_path / "saved")
    critic = CriticRank(config)
    batches = [with_values(train_batch(seed=seed), critic) for seed in (1, 2, 3)]
    reports = [critic.update(iteration, f"{iteration}", batches[iteration - 1]) for iteration in (1, 2)]
    critic.save_checkpoint(saved)
    reports.append(critic.update(3, "3", batches[2]))
    uninterrupted = weights(critic)
    resumed = CriticRank(config)
    resumed.load_checkpoint(saved)
    assert resumed.policy_version() == 2
    assert resumed.update(2, "2", batches[1]) == reports[1]
    assert resumed.update(3, "3", batches[2])["metrics"]["value_loss"] == reports[2]["metrics"]["value_loss"]
    assert_close(weights(resumed), uninterrupted)


def test_while_only_the_critic_trains_the_policys_updates_are_skipped_and_its_schedule_waits(tiny_llama: Path) -> None:
    schedule = {"learning_rate": 1e-3, "lr_scheduler_type": "linear", "lr_decay_steps": 4, "warmup_steps": 1}
    config = critic_config(tiny_llama, critic={"warmup_iterations": 2}, trainer=schedule)
    trainer = TrainerRank(config)
    before = {name: parameter.detach().clone() for name, parameter in trainer.pieces[0].named_parameters()}
    batch = train_batch()
    reports = [UpdateReport.model_validate(trainer.update(iteration, f"{iteration}", batch)) for iteration in (1, 2, 3)]
    assert [(report.skipped, report.optimizer_steps) for report in reports] == [(True, 0), (True, 0), (False, 1)]
    assert trainer.policy_version() == 3
    assert reports[2].metrics["learning_rate"] == pytest.approx(0.5e-3)
    assert any(not torch.equal(before[name], parameter) for name, parameter in trainer.pieces[0].named_parameters())
