"""What holds for every policy loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from rlcore.algorithms import LossInputs, aggregate, policy_loss
from rlcore.algorithms.aggregation import MODES
from tests.algorithms.loss_cases import CASES, each_loss, run, take, with_selection
from tests.algorithms.strategies import loss_inputs, splits


@each_loss
@settings(max_examples=25)
@given(data=st.data(), batch=loss_inputs())
def test_micro_batches_sum_to_the_loss_gradient_and_metrics_of_the_batch(
    name: str, options: dict[str, Any], data: st.DataObject, batch: LossInputs
) -> None:
    batch = with_selection(name, options, batch)
    totals = {"num_tokens": int(batch.mask.sum()), "num_sequences": int(batch.mask.any(-1).sum())}

    def run_modes(inputs: LossInputs) -> tuple[list[Tensor], list[Tensor], dict[str, Tensor]]:
        logprobs = inputs.logprobs.clone().requires_grad_()
        token_loss, metrics = policy_loss(name, replace(inputs, logprobs=logprobs), **options)
        losses = [aggregate(token_loss, inputs.mask, mode, max_length=16, **totals) for mode in MODES]
        gradients = [torch.autograd.grad(loss, logprobs, retain_graph=True)[0] for loss in losses]
        return [loss.detach() for loss in losses], gradients, metrics

    whole_losses, whole_gradients, whole_metrics = run_modes(batch)
    parts = [run_modes(take(batch, rows)) for rows in data.draw(splits(len(batch.mask)))]
    for index in range(len(MODES)):
        torch.testing.assert_close(torch.stack([part[0][index] for part in parts]).sum(), whole_losses[index])
        torch.testing.assert_close(torch.cat([part[1][index] for part in parts]), whole_gradients[index])
    for key, value in whole_metrics.items():
        torch.testing.assert_close(torch.stack([part[2][key] for part in parts]).sum(), value)


@each_loss
@settings(max_examples=25)
@given(batch=loss_inputs(), garbage=st.sampled_from([0.0, 1e4, float("inf"), float("-inf"), float("nan")]))
def test_padding_and_what_stands_at_masked_positions_change_nothing(
    name: str, options: dict[str, Any], batch: LossInputs, garbage: float
) -> None:
    batch = with_selection(name, options, batch)
    mask = torch.nn.functional.pad(batch.mask, (0, 3))

    def spoil(values: Tensor | None) -> Tensor:
        assert values is not None
        return torch.nn.functional.pad(values, (0, 3)).where(mask, garbage)

    spoilt = LossInputs(
        spoil(batch.logprobs),
        spoil(batch.old_logprobs),
        spoil(batch.advantages),
        mask,
        rollout_logprobs=spoil(batch.rollout_logprobs),
        sequence_rewards=batch.sequence_rewards,
        selected=None if batch.selected is None else torch.nn.functional.pad(batch.selected, (0, 3)) | ~mask,
    )
    token_loss, gradient, metrics = run(name, options, batch)
    spoilt_loss, spoilt_gradient, spoilt_metrics = run(name, options, spoilt)
    torch.testing.assert_close(spoilt_loss[:, :-3], token_loss)
    torch.testing.assert_close(spoilt_gradient[:, :-3], gradient)
    assert not spoilt_loss[~mask].any() and not spoilt_gradient[~mask].any()
    torch.testing.assert_close(spoilt_metrics, metrics)
    selected = with_selection(name, options, spoilt).selected
    if selected is not None and batch.selected is not None:
        assert torch.equal(selected[:, :-3], batch.selected) and not selected[:, -3:].any()


@each_loss
@settings(max_examples=25)
@given(data=st.data(), batch=loss_inputs())
def test_the_order_of_rows_changes_nothing(
    name: str, options: dict[str, Any], data: st.DataObject, batch: LossInputs
) -> None:
    batch = with_selection(name, options, batch)
    order = torch.tensor(data.draw(st.permutations(range(len(batch.mask)))))
    token_loss, gradient, metrics = run(name, options, batch)
    permuted_loss, permuted_gradient, permuted_metrics = run(name, options, take(batch, order))
    torch.testing.assert_close(permuted_loss, token_loss[order])
    torch.testing.assert_close(permuted_gradient, gradient[order])
    torch.testing.assert_close(permuted_metrics, metrics)


def on_policy_gradient(name: str, options: dict[str, Any], batch: LossInputs) -> Tensor:
    """What the gradient of the summed token losses has to be where π = π_old = μ."""
    gradient = -batch.advantages * batch.mask
    match name:
        case "gspo" | "gmpo":  # The ratio is the sequence's, so every token has the mean advantage.
            return gradient.sum(-1, keepdim=True) / batch.mask.sum(-1, keepdim=True).clamp(min=1) * batch.mask
        case "opmd":
            return gradient / (1 + options["tau"])
        case "topr":
            assert batch.sequence_rewards is not None
            positive, negative = options.get("positive_weight", 1.0), options.get("negative_weight", 1.0)
            weights = torch.where(batch.sequence_rewards >= 0, positive, negative)
            return weights[:, None] * gradient
        case "clip_cov":
            assert batch.selected is not None
            return gradient * ~batch.selected
        case _:
            return gradient


@each_loss
@settings(max_examples=25)
@given(batch=loss_inputs())
def test_on_policy_the_gradient_is_the_policy_gradient(name: str, options: dict[str, Any], batch: LossInputs) -> None:
    batch = replace(batch, logprobs=batch.old_logprobs, rollout_logprobs=batch.old_logprobs)
    batch = with_selection(name, options, batch)
    _, gradient, metrics = run(name, options, batch)
    torch.testing.assert_close(gradient, on_policy_gradient(name, options, batch))
    assert metrics["ratio"] == batch.mask.sum()
    assert metrics["approx_kl_k1"] == metrics["approx_kl_k3"] == 0
    assert all(value == 0 for key, value in metrics.items() if key.startswith(("clip_fraction", "correction_fraction")))


@each_loss
@settings(max_examples=25)
@given(batch=loss_inputs(), scale=st.sampled_from([0.25, 1.0, 8.0]))
def test_losses_scale_with_the_advantages_apart_from_what_does_not_read_them(
    name: str, options: dict[str, Any], batch: LossInputs, scale: float
) -> None:
    batch = with_selection(name, options, batch)

    def at(factor: float) -> tuple[Tensor, Tensor]:
        return run(name, options, replace(batch, advantages=factor * batch.advantages))[:2]

    (without, without_gradient), (once, once_gradient), (scaled, scaled_gradient) = at(0.0), at(1.0), at(scale)
    torch.testing.assert_close(scaled - without, scale * (once - without))
    torch.testing.assert_close(scaled_gradient - without_gradient, scale * (once_gradient - without_gradient))
    if name not in ("kimi15", "kl_cov"):  # The two with a penalty of their own.
        assert not without.any() and not without_gradient.any()


LINEAR = [case for case in CASES if CASES[case][0] in ("reinforce", "topr", "tis_roll", "opmd") or case == "cispo"]


@pytest.mark.parametrize(("name", "options"), [CASES[case] for case in LINEAR], ids=LINEAR)
@given(batch=loss_inputs())
def test_weighted_policy_gradients_are_odd_in_the_advantages(
    name: str, options: dict[str, Any], batch: LossInputs
) -> None:
    token_loss, gradient, _ = run(name, options, batch)
    opposite_loss, opposite_gradient, _ = run(name, options, replace(batch, advantages=-batch.advantages))
    torch.testing.assert_close(opposite_loss, -token_loss)
    torch.testing.assert_close(opposite_gradient, -gradient)


@each_loss
@pytest.mark.parametrize("shape", [(1, 1), (3, 4)])
@pytest.mark.parametrize("mode", MODES)
def test_all_masked_gives_zero_with_zero_gradient(
    name: str, options: dict[str, Any], shape: tuple[int, int], mode: str
) -> None:
    logprobs = torch.full(shape, -1.0).requires_grad_()
    other, nothing = torch.full(shape, -2.0), torch.zeros(shape)
    inputs = LossInputs(logprobs, other, other, nothing, rollout_logprobs=other, sequence_rewards=other[:, 0])
    token_loss, metrics = policy_loss(name, inputs, **options)
    loss = aggregate(token_loss, nothing, mode, max_length=8)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    assert loss == 0 and not gradient.any() and not token_loss.any()
    assert all(value == 0 for value in metrics.values())


@each_loss
@pytest.mark.parametrize("difference", [-200.0, -30.0, 30.0, 200.0])
@pytest.mark.parametrize("advantage", [-3.0, 0.0, 3.0])
@pytest.mark.parametrize("length", [1, 64])
def test_extreme_log_ratios_stay_finite_in_float32(
    name: str, options: dict[str, Any], difference: float, advantage: float, length: int
) -> None:
    logprobs = torch.full((1, length), min(difference, 0.0))
    inputs = LossInputs(
        logprobs,
        logprobs - difference,
        torch.full((1, length), advantage),
        torch.ones(1, length),
        rollout_logprobs=logprobs - difference / 2,
        sequence_rewards=torch.tensor([advantage]),
    )
    token_loss, gradient, metrics = run(name, options, inputs)
    assert token_loss.isfinite().all() and gradient.isfinite().all()
    assert all(value.isfinite() for value in metrics.values())
    assert token_loss.dtype == gradient.dtype == torch.float32


@each_loss
def test_metrics_carry_no_gradient(name: str, options: dict[str, Any]) -> None:
    logprobs, other = torch.full((2, 3), -1.0).requires_grad_(), torch.full((2, 3), -2.0)
    rewards = torch.tensor([1.0, -1.0])
    inputs = LossInputs(logprobs, other, other, torch.ones(2, 3), rollout_logprobs=other, sequence_rewards=rewards)
    token_loss, metrics = policy_loss(name, inputs, **options)
    assert token_loss.requires_grad
    assert all(value.ndim == 0 and not value.requires_grad for value in metrics.values())
