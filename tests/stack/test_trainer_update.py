"""Updates: their gradient, their order, and that each is applied once. On a tiny random Llama."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from rlcore.algorithms import LossInputs, aggregate, policy_loss
from rlcore.reports import UpdateReport
from rlcore.trainer.minibatches import optimizer_steps
from rlcore.trainer.rank import TrainerRank
from rlcore.trainer.updates import NonFiniteGradient, UpdateRefused
from tests.stack.training import dropped, on_policy, train_batch, trainer_config, trainers_in_this_process, weights


@pytest.fixture(scope="module", autouse=True)
def _world() -> Iterator[None]:
    with trainers_in_this_process():
        yield


def gradients(trainer: TrainerRank) -> dict[str, Tensor]:
    """What the last update stepped on, after clipping, by Megatron's names."""
    return {name: parameter.main_grad.clone() for name, parameter in trainer.pieces[0].named_parameters()}


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert (tensor - theirs[name]).abs().max() <= tolerance, name


def test_an_update_is_adamw_on_the_gradient_of_the_hugging_face_model(tiny_llama: Path, tmp_path: Path) -> None:
    batch = train_batch()
    trainer = TrainerRank(trainer_config(tiny_llama, trainer={"learning_rate": 1e-4, "weight_decay": 0.1}))
    report = trainer.update(1, "digest", batch)
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    num_tokens = int(batch["response_ids"].list.len().sum())
    for prompt, response, old, advantages in batch.select(
        "prompt_ids", "response_ids", "old_logprobs", "advantages"
    ).iter_rows():
        logits = model(torch.tensor([prompt + response])).logits[:, len(prompt) - 1 : -1]
        logprobs = logits.log_softmax(-1).gather(-1, torch.tensor(response)[None, :, None])[..., 0]
        mask = torch.ones_like(logprobs)
        inputs = LossInputs(logprobs, torch.tensor([old]), torch.tensor([advantages]), mask)
        aggregate(policy_loss("ppo", inputs)[0], mask, "token-mean", num_tokens=num_tokens).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    plain = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}], lr=1e-4
    ).step()
    assert report["metrics"]["grad_norm"] == pytest.approx(float(norm), rel=1e-5)
    # AdamW's first step is the sign of the gradient: where that is about 0, rounding decides by up to one step.
    difference = torch.cat(
        [(tensor - model.state_dict()[name]).abs().flatten() for name, tensor in weights(trainer, tmp_path).items()]
    )
    assert difference.max() <= 2e-4
    assert (difference > 1e-6).float().mean() < 0.01


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_micro_batches_do_not_change_the_gradient(tiny_llama: Path, mode: str) -> None:
    results = []
    for budget in (4096, 60):
        trainer = TrainerRank(
            trainer_config(
                tiny_llama,
                trainer={"max_tokens_per_micro_batch": budget},
                algorithm={"loss_agg_mode": mode, "entropy_loss_coef": 0.01},
            )
        )
        report = trainer.update(1, "digest", train_batch())
        results.append((gradients(trainer), report["metrics"]))
    (whole, whole_metrics), (split, split_metrics) = results
    assert_close(split, whole, 1e-6)
    for name in whole_metrics.keys() - {"tokens_per_second"}:
        assert split_metrics[name] == pytest.approx(whole_metrics[name], rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("lengths", [(1, 1, 1, 1), (16, 16, 16, 16), (1, 16, 7, 2)], ids=["one", "limit", "ragged"])
def test_rows_that_share_their_prompt_train_as_rows_of_their_own(tiny_llama: Path, lengths: tuple[int, ...]) -> None:
    batch = train_batch(rows=12, group_size=4, response_lengths=lengths)
    results = []
    for share_prompts in (True, False):
        trainer = TrainerRank(
            trainer_config(tiny_llama, trainer={"share_prompts": share_prompts}, algorithm={"entropy_loss_coef": 0.01})
        )
        logprobs = trainer.logprobs(batch)["logprobs"].explode().to_torch()
        trainer.update(1, "digest", batch)
        results.append((logprobs, gradients(trainer)))
    (shared, shared_gradients), (own, own_gradients) = results
    assert (shared - own).abs().max() < 1e-5
    assert_close(shared_gradients, own_gradients, 1e-6)


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputed_activations_are_those_that_were_not_kept(tiny_llama: Path, recompute: str) -> None:
    results = []
    for setting in ("none", recompute):
        trainer = TrainerRank(trainer_config(tiny_llama, trainer={"recompute": setting}))
        trainer.update(1, "digest", train_batch())
        results.append(gradients(trainer))
    kept, recomputed = results
    assert_close(recomputed, kept, 0.0)


def test_after_the_first_mini_batch_the_ratio_is_off_policy_and_reported(tiny_llama: Path) -> None:
    reports = []
    for mini_batches in (1, 2):
        trainer = TrainerRank(trainer_config(tiny_llama, algorithm={"mini_batches": mini_batches}))
        batch = train_batch()
        report = trainer.update(1, "digest", on_policy(batch, trainer.logprobs(batch)))
        assert report["optimizer_steps"] == mini_batches
        assert report["metrics"]["num_tokens"] == batch["response_ids"].list.len().sum()
        assert report["metrics"]["logprob_gap_max"] < 1e-4
        reports.append(report["metrics"])
    whole, divided = reports
    assert whole["last_step_ratio"] == whole["ratio"] == pytest.approx(1.0, abs=1e-5)
    assert abs(divided["last_step_ratio"] - 1.0) > 1e-3
    # The mean of a first step at 1 and of the last.
    assert divided["ratio"] == pytest.approx((1.0 + divided["last_step_ratio"]) / 2, abs=1e-5)
    assert divided["last_step_approx_kl_k3"] > 0.0


def test_a_step_has_the_denominators_of_its_own_mini_batch(tiny_llama: Path) -> None:
    """The last step's gradient, from micro-batches of one row, is that of its rows as a batch of their own."""
    batch = train_batch()
    settings = {"ppo_epochs": 1, "mini_batches": 2}
    [first, last] = optimizer_steps(range(len(batch)), epochs=1, mini_batches=2, seed=0, iteration=1)
    divided = TrainerRank(trainer_config(tiny_llama, algorithm=settings, trainer={"max_tokens_per_micro_batch": 1}))
    divided.update(1, "digest", batch)
    apart = TrainerRank(trainer_config(tiny_llama))
    apart.update(1, "first", batch[first])
    apart.update(2, "last", batch[last])
    assert_close(gradients(divided), gradients(apart), 1e-6)


def test_rows_that_do_not_train_change_nothing(tiny_llama: Path, tmp_path: Path) -> None:
    kept = train_batch(rows=4)
    nothing = dropped(train_batch(rows=3, seed=1))
    empty = nothing.head(1).with_columns(
        pl.col("sample_id") + "-empty",
        pl.col("response_ids", "loss_mask", "rollout_logprobs", "old_logprobs", "advantages", "returns").list.head(0),
    )
    trained = []
    for batch in (kept, pl.concat([nothing, kept, empty])):
        trainer = TrainerRank(trainer_config(tiny_llama))
        trainer.update(1, "digest", batch)
        trained.append(weights(trainer, tmp_path))
    assert_close(trained[0], trained[1], tolerance=0.0)


def test_the_same_batches_give_the_same_weights_bit_for_bit(tiny_llama: Path, tmp_path: Path) -> None:
    trained = []
    for _ in range(2):
        trainer = TrainerRank(trainer_config(tiny_llama, algorithm={"ppo_epochs": 2}))
        trainer.update(1, "a", train_batch(seed=1))
        trained.append(weights(trainer, tmp_path))
    assert_close(trained[0], trained[1], tolerance=0.0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_positive_advantages_make_their_responses_likelier(tiny_llama: Path, dtype: str) -> None:
    trainer = TrainerRank(trainer_config(tiny_llama, dtype))
    batch = train_batch(advantages=(1.0,))
    means = []
    for iteration in (1, 2, 3):
        logprobs = trainer.logprobs(batch)
        means.append(float(logprobs["logprobs"].explode().to_torch().mean()))
        trainer.update(iteration, f"digest {iteration}", on_policy(batch, logprobs))
    assert means == sorted(set(means))


def test_the_report_is_of_the_tokens_that_trained(tiny_llama: Path) -> None:
    trainer = TrainerRank(trainer_config(tiny_llama))
    batch = train_batch()
    batch = on_policy(batch, trainer.logprobs(batch))
    report = UpdateReport.model_validate(trainer.update(1, "digest", batch))
    assert (report.iteration, report.policy_version, report.optimizer_steps, report.skipped) == (1, 1, 1, False)
    assert report.metrics["num_tokens"] == batch["response_ids"].list.len().sum()
    assert report.metrics["num_sequences"] == len(batch)
    assert report.metrics["ratio_p01"] == pytest.approx(1.0, abs=1e-4)
    assert report.metrics["ratio_p99"] == pytest.approx(1.0, abs=1e-4)
    assert report.metrics["clip_fraction_low"] == report.metrics["clip_fraction_high"] == 0.0
    assert report.metrics["logprob_gap_max"] == 0.0
    assert report.metrics["effective_sample_size"] == pytest.approx(1.0)
    assert 0.0 < report.metrics["entropy"] < 10.81
    assert report.metrics["grad_norm"] > 0.0


def test_an_update_is_applied_once_and_in_order(tiny_llama: Path, tmp_path: Path) -> None:
    trainer = TrainerRank(trainer_config(tiny_llama))
    batch = train_batch()
    first = trainer.update(1, "digest", batch)
    once = weights(trainer, tmp_path)
    assert trainer.update(1, "digest", batch) == first
    with pytest.raises(UpdateRefused, match="update 1 was applied with batch digest, not another"):
        trainer.update(1, "another", batch)
    with pytest.raises(UpdateRefused, match="update 3 is out of order: the next one is 2"):
        trainer.update(3, "third", batch)
    assert trainer.policy_version() == 1
    assert_close(weights(trainer, tmp_path), once, tolerance=0.0)


def test_a_batch_in_which_nothing_trains_is_an_update_without_a_step(tiny_llama: Path, tmp_path: Path) -> None:
    trainer = TrainerRank(trainer_config(tiny_llama))
    before = weights(trainer, tmp_path)
    report = UpdateReport.model_validate(trainer.update(1, "digest", dropped(train_batch())))
    assert (report.skipped, report.optimizer_steps, report.metrics["num_tokens"]) == (True, 0, 0)
    assert trainer.policy_version() == 1
    assert_close(weights(trainer, tmp_path), before, tolerance=0.0)


def endless(batch: pl.DataFrame) -> pl.DataFrame:
    """The batch with advantages that are infinite, and so with a gradient that is not finite."""
    return batch.with_columns(pl.col("advantages").list.eval(pl.element() * 1e38 * 1e38))


def test_a_step_without_a_finite_gradient_is_skipped_and_counted(tiny_llama: Path, tmp_path: Path) -> None:
    trainer, batch = TrainerRank(trainer_config(tiny_llama)), train_batch()
    trainer.update(1, "1", batch)
    before = weights(trainer, tmp_path)
    report = UpdateReport.model_validate(trainer.update(2, "endless", endless(batch)))
    assert (report.skipped, report.optimizer_steps, report.metrics["skipped_steps"]) == (True, 0, 1)
    assert all(math.isfinite(value) for value in report.metrics.values())
    assert trainer.policy_version() == 2
    assert_close(weights(trainer, tmp_path), before, tolerance=0.0)
    report = UpdateReport.model_validate(trainer.update(3, "3", batch))
    assert (report.skipped, report.metrics["skipped_steps"]) == (False, 0)
    # AdamW's moments are as they were too: the next step is that of a trainer to which nothing happened.
    undisturbed = TrainerRank(trainer_config(tiny_llama))
    undisturbed.update(1, "1", batch)
    undisturbed.update(2, "3", batch)
    assert_close(weights(trainer, tmp_path), weights(undisturbed, tmp_path), tolerance=0.0)


def test_the_third_skipped_step_in_a_row_is_an_error_for_a_restored_trainer_too(
    tiny_llama: Path, tmp_path: Path
) -> None:
    trainer, batch = TrainerRank(trainer_config(tiny_llama)), train_batch()
    for iteration in (1, 2):
        trainer.update(iteration, f"{iteration}", endless(batch))
    trainer.save_checkpoint(str(tmp_path / "saved"))
    restored = TrainerRank(trainer_config(tiny_llama))
    restored.load_checkpoint(str(tmp_path / "saved"))
    for each in (trainer, restored):
        with pytest.raises(NonFiniteGradient, match="update 3: the gradients of 3 optimizer steps in a row"):
            each.update(3, "3", endless(batch))
        assert each.policy_version() == 2
    restored.update(3, "3", batch)
    restored.update(4, "4", endless(batch))
    assert restored.policy_version() == 4


def test_an_update_that_broke_off_between_two_steps_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    trainer = TrainerRank(trainer_config(tiny_llama, trainer={"learning_rate": 1e30}, algorithm={"ppo_epochs": 4}))
    trainer.save_checkpoint(str(tmp_path / "saved"))
    before = weights(trainer, tmp_path)
    with pytest.raises(NonFiniteGradient):
        trainer.update(1, "digest", train_batch())
    with pytest.raises(UpdateRefused, match="update 1 broke off after it had changed weights: restore a checkpoint"):
        trainer.update(1, "digest", train_batch())
    trainer.load_checkpoint(str(tmp_path / "saved"))
    assert_close(weights(trainer, tmp_path), before, tolerance=0.0)
    with pytest.raises(NonFiniteGradient):
        trainer.update(1, "digest", train_batch())


def test_weight_decay_acts_on_matrices_and_not_on_norms(tiny_llama: Path, tmp_path: Path) -> None:
    trained = {}
    for decay in (0.0, 0.5):
        trainer = TrainerRank(trainer_config(tiny_llama, trainer={"weight_decay": decay}))
        start = weights(trainer, tmp_path)
        trainer.update(1, "digest", train_batch())
        trained[decay] = weights(trainer, tmp_path)
    for name, plain in trained[0.0].items():
        # AdamW (Loshchilov and Hutter, arXiv 1711.05101): the step and the decay add up.
        expected = plain - 1e-3 * 0.5 * start[name] if plain.ndim > 1 else plain
        assert (trained[0.5][name] - expected).abs().max() <= 1e-6, name


def test_the_gradient_is_clipped_to_its_largest_norm(tiny_llama: Path) -> None:
    trainer = TrainerRank(trainer_config(tiny_llama, trainer={"max_grad_norm": 0.01}))
    report = trainer.update(1, "digest", train_batch())
    clipped = torch.stack([gradient.norm() for gradient in gradients(trainer).values()]).norm()
    assert report["metrics"]["grad_norm"] > 0.01
    assert float(clipped) == pytest.approx(0.01, rel=1e-3)


def test_the_rate_of_an_update_is_its_place_in_the_schedule(tiny_llama: Path, tmp_path: Path) -> None:
    """An update in which nothing trains counts, mini-batches do not, and a restored trainer is in the same place."""
    config = trainer_config(
        tiny_llama,
        trainer={"learning_rate": 1e-4, "lr_scheduler_type": "linear", "warmup_steps": 1, "lr_decay_steps": 5},
        algorithm={"mini_batches": 2},
    )
    trainer = TrainerRank(config)
    batches = [train_batch(seed=1), dropped(train_batch(seed=2)), train_batch(seed=3), train_batch(seed=4)]
    expected = [0.5e-4, 1e-4, 0.75e-4, 0.5e-4]
    for iteration in (1, 2, 3):
        report = trainer.update(iteration, f"{iteration}", batches[iteration - 1])
        assert report["metrics"]["learning_rate"] == pytest.approx(expected[iteration - 1])
    trainer.save_checkpoint(str(tmp_path / "saved"))
    trainer.update(4, "4", batches[3])
    restored = TrainerRank(config)
    restored.load_checkpoint(str(tmp_path / "saved"))
    assert restored.update(4, "4", batches[3])["metrics"]["learning_rate"] == pytest.approx(expected[3])
    assert_close(weights(restored, tmp_path), weights(trainer, tmp_path), tolerance=0.0)


def test_a_kl_loss_without_reference_logprobs_is_refused(tiny_llama: Path) -> None:
    trainer = TrainerRank(trainer_config(tiny_llama, algorithm={"kl_loss_coef": 0.1}))
    with pytest.raises(ValueError, match=r"ref_logprobs of 0-\d is null"):
        trainer.update(1, "digest", train_batch())
