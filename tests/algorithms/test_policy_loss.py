from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from rlcore.algorithms import LossInputs, aggregate, policy_loss
from rlcore.algorithms.aggregation import MODES
from tests.algorithms.strategies import Tokens, splits, tokens

LOSSES: list[tuple[str, dict[str, Any]]] = [
    ("reinforce", {}),
    ("ppo", {"clip_low": 0.2, "clip_high": 0.28}),
    ("ppo", {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 1.4}),
]
each_loss = pytest.mark.parametrize(("name", "options"), LOSSES, ids=["reinforce", "ppo", "dual_clip"])


def one_token(log_ratio: float, advantage: float, **options: Any) -> tuple[float, dict[str, float]]:
    """Loss and metrics of PPO on a single token."""
    inputs = LossInputs(torch.tensor([[log_ratio]]), torch.zeros(1, 1), torch.tensor([[advantage]]), torch.ones(1, 1))
    loss, metrics = policy_loss("ppo", inputs, **options)
    return loss.item(), {key: value.item() for key, value in metrics.items()}


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "clipped"),
    [
        (1.1, 2.0, -2.2, None),  # inside: −1.1·2
        (1.5, 2.0, -2.56, "high"),  # −min(1.5·2, 1.28·2)
        (0.5, 2.0, -1.0, None),  # the lower bound does not hold back a step towards a good token: −0.5·2
        (0.5, -2.0, 1.6, "low"),  # −min(0.5·−2, 0.8·−2)
        (1.5, -2.0, 3.0, None),  # −min(1.5·−2, 1.28·−2)
    ],
)
def test_ppo_clips_only_where_the_clip_lowers_the_objective(
    ratio: float, advantage: float, expected: float, clipped: str | None
) -> None:
    loss, metrics = one_token(math.log(ratio), advantage, clip_low=0.2, clip_high=0.28)
    assert loss == pytest.approx(expected, rel=1e-6)
    assert metrics["clip_fraction_low"] == (clipped == "low")
    assert metrics["clip_fraction_high"] == (clipped == "high")


def test_dual_clip_bounds_the_loss_of_a_bad_token_at_c_times_its_advantage() -> None:
    # r = 5, A = −2: PPO's loss is 10, the bound 3·2 = 6. A good token is untouched.
    loss, metrics = one_token(math.log(5), -2.0, dual_clip=3.0)
    assert loss == pytest.approx(6.0) and metrics["clip_fraction_dual"] == 1
    loss, metrics = one_token(math.log(5), 2.0, dual_clip=3.0)
    assert loss == pytest.approx(-2.4) and metrics["clip_fraction_dual"] == 0


def test_metrics_are_token_sums_of_ratio_and_kl() -> None:
    logprobs, old_logprobs = torch.tensor([[-1.0, -2.0, -9.0]]), torch.tensor([[-1.5, -1.0, -1.0]])
    inputs = LossInputs(logprobs, old_logprobs, torch.ones(1, 3), torch.tensor([[1, 1, 0]]))
    _, metrics = policy_loss("reinforce", inputs)
    # log r = 0.5, −1: r = 1.648721, 0.367879; −log r sums to 0.5; r − 1 − log r = 0.148721 + 0.367879
    assert metrics["ratio"].item() == pytest.approx(2.016601, rel=1e-5)
    assert metrics["approx_kl_k1"].item() == pytest.approx(0.5)
    assert metrics["approx_kl_k3"].item() == pytest.approx(0.516601, rel=1e-5)


def test_reinforce_is_minus_advantage_times_logprob() -> None:
    inputs = LossInputs(torch.tensor([[-2.0, -3.0]]), torch.zeros(1, 2), torch.tensor([[0.5, -1.0]]), torch.ones(1, 2))
    loss, _ = policy_loss("reinforce", inputs)
    assert loss.tolist() == [[1.0, -3.0]]


@each_loss
@given(batch=tokens())
def test_on_policy_the_gradient_is_minus_the_advantage(name: str, options: dict[str, Any], batch: Tokens) -> None:
    logprobs = batch.old_logprobs.clone().requires_grad_()
    inputs = LossInputs(logprobs, batch.old_logprobs, batch.advantages, batch.mask)
    loss, metrics = policy_loss(name, inputs, **options)
    (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
    torch.testing.assert_close(gradient, -batch.advantages * batch.mask)
    assert metrics["ratio"] == batch.mask.sum()
    assert metrics["approx_kl_k1"] == metrics["approx_kl_k3"] == 0
    assert all(value == 0 for key, value in metrics.items() if key.startswith("clip_fraction"))


@each_loss
@pytest.mark.parametrize("mode", MODES)
@given(data=st.data(), batch=tokens())
def test_micro_batches_sum_to_the_loss_gradient_and_metrics_of_the_batch(
    name: str, options: dict[str, Any], mode: str, data: st.DataObject, batch: Tokens
) -> None:
    def run(rows: slice) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        logprobs = batch.logprobs[rows].clone().requires_grad_()
        inputs = LossInputs(logprobs, batch.old_logprobs[rows], batch.advantages[rows], batch.mask[rows])
        token_loss, metrics = policy_loss(name, inputs, **options)
        loss = aggregate(
            token_loss,
            inputs.mask,
            mode,
            num_tokens=int(batch.mask.sum()),
            num_sequences=int(batch.mask.any(-1).sum()),
            max_length=16,
        )
        (gradient,) = torch.autograd.grad(loss, logprobs)
        return loss.detach(), gradient, metrics

    whole_loss, whole_gradient, whole_metrics = run(slice(None))
    parts = [run(rows) for rows in data.draw(splits(len(batch.mask)))]
    torch.testing.assert_close(torch.stack([loss for loss, _, _ in parts]).sum(), whole_loss)
    torch.testing.assert_close(torch.cat([gradient for _, gradient, _ in parts]), whole_gradient)
    for key, value in whole_metrics.items():
        torch.testing.assert_close(torch.stack([metrics[key] for _, _, metrics in parts]).sum(), value)


@each_loss
@given(batch=tokens(), garbage=st.sampled_from([0.0, 1e4, float("inf"), float("nan")]))
def test_what_stands_at_masked_positions_changes_nothing(
    name: str, options: dict[str, Any], batch: Tokens, garbage: float
) -> None:
    def run(batch: Tokens) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        logprobs = batch.logprobs.clone().requires_grad_()
        inputs = LossInputs(logprobs, batch.old_logprobs, batch.advantages, batch.mask)
        loss, metrics = policy_loss(name, inputs, **options)
        (gradient,) = torch.autograd.grad(aggregate(loss, batch.mask, "token-mean"), logprobs)
        return loss, gradient, metrics

    def spoil(values: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(values, (0, 3))
        return padded.where(torch.nn.functional.pad(batch.mask, (0, 3)), garbage)

    loss, gradient, metrics = run(batch)
    spoilt = Tokens(
        spoil(batch.logprobs),
        spoil(batch.old_logprobs),
        spoil(batch.advantages),
        torch.nn.functional.pad(batch.mask, (0, 3)),
    )
    spoilt_loss, spoilt_gradient, spoilt_metrics = run(spoilt)
    torch.testing.assert_close(spoilt_loss[:, :-3], loss)
    torch.testing.assert_close(spoilt_gradient[:, :-3], gradient)
    assert not spoilt_loss[:, -3:].any() and not spoilt_gradient[:, -3:].any()
    torch.testing.assert_close(spoilt_metrics, metrics)


@each_loss
@pytest.mark.parametrize("seed", range(5))
def test_gradient_equals_finite_differences(name: str, options: dict[str, Any], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    old_logprobs = -torch.rand(3, 5, generator=generator, dtype=torch.float64)
    logprobs = old_logprobs + torch.randn(3, 5, generator=generator, dtype=torch.float64)
    advantages = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    mask = torch.rand(3, 5, generator=generator) < 0.7

    def loss(logprobs: Tensor) -> Tensor:
        return policy_loss(name, LossInputs(logprobs, old_logprobs, advantages, mask), **options)[0]

    assert torch.autograd.gradcheck(loss, logprobs.requires_grad_())


@each_loss
@pytest.mark.parametrize("difference", [-200.0, -30.0, 30.0, 200.0])
@pytest.mark.parametrize("advantage", [-3.0, 0.0, 3.0])
def test_extreme_log_ratios_stay_finite_in_float32(
    name: str, options: dict[str, Any], difference: float, advantage: float
) -> None:
    logprobs = torch.full((1, 2), min(difference, 0.0)).requires_grad_()
    inputs = LossInputs(logprobs, logprobs.detach() - difference, torch.full((1, 2), advantage), torch.ones(1, 2))
    loss, metrics = policy_loss(name, inputs, **options)
    (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
    assert loss.isfinite().all() and gradient.isfinite().all()
    assert all(value.isfinite() for value in metrics.values())


def test_unknown_names_options_and_shapes_are_refused() -> None:
    inputs = LossInputs(*(torch.zeros(2, 3) for _ in range(4)))
    with pytest.raises(ValueError, match="no policy loss 'pppo'; there are ppo, reinforce"):
        policy_loss("pppo", inputs)
    with pytest.raises(TypeError, match="clip_hihg"):
        policy_loss("ppo", inputs, clip_hihg=0.3)
    with pytest.raises(ValueError, match=r"LossInputs.mask has shape \(2, 4\)"):
        LossInputs(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 4))
