from __future__ import annotations

import math
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from rlcore.algorithms.value_loss import value_loss
from tests.algorithms.strategies import Tokens, tokens

each_clip = pytest.mark.parametrize("clip", [None, 0.2])


def one_token(value: float, old_value: float, target: float, clip: float | None) -> tuple[float, float]:
    """Loss and gradient."""
    values = torch.tensor([[value]], dtype=torch.float64, requires_grad=True)
    loss = value_loss(values, torch.tensor([[old_value]]).double(), torch.tensor([[target]]), torch.ones(1, 1), clip)
    (gradient,) = torch.autograd.grad(loss.sum(), values)
    return loss.item(), gradient.item()


@pytest.mark.parametrize(
    ("value", "clip", "loss", "gradient"),
    [
        (0.5, None, 0.5 * 0.5**2, -0.5),  # ½(0.5 − 1)²
        (0.1, 0.2, 0.5 * 0.9**2, -0.9),  # inside the clip
        (0.5, 0.2, 0.5 * 0.8**2, 0.0),  # more than 0.2 towards the return: ½(0.2 − 1)² is the larger
        (-0.5, 0.2, 0.5 * 1.5**2, -1.5),  # away from it: ½(−0.5 − 1)² is the larger
        (3.0, 0.2, 0.5 * 2.0**2, 2.0),  # far beyond it: ½(3 − 1)² is the larger
    ],
)
def test_by_hand_from_value_zero_towards_return_one(
    value: float, clip: float | None, loss: float, gradient: float
) -> None:
    assert one_token(value, 0.0, 1.0, clip) == pytest.approx((loss, gradient))


def changed(batch: Tokens, change: Callable[[Tensor], Tensor]) -> Tokens:
    """With values, old values and returns changed; `run` reads them from log-probabilities and advantages."""
    return Tokens(change(batch.logprobs), change(batch.old_logprobs), change(batch.advantages), batch.mask)


def run(batch: Tokens, clip: float | None) -> tuple[Tensor, Tensor]:
    values = batch.logprobs.clone().requires_grad_()
    loss = value_loss(values, batch.old_logprobs, batch.advantages, batch.mask, clip)
    return loss.detach(), torch.autograd.grad(loss.sum(), values)[0]


@each_clip
@given(batch=tokens(), garbage=st.sampled_from([1e30, math.inf, math.nan]))
def test_what_stands_at_masked_positions_changes_nothing(clip: float | None, batch: Tokens, garbage: float) -> None:
    loss, gradient = run(batch, clip)
    assert not loss[~batch.mask].any() and not gradient[~batch.mask].any()
    spoilt = changed(batch, lambda tensor: tensor.where(batch.mask, garbage))
    torch.testing.assert_close(run(spoilt, clip), (loss, gradient))


@given(batch=tokens())
def test_clipping_only_raises_the_loss_and_only_stops_gradients(batch: Tokens) -> None:
    (loss, gradient), (clipped_loss, clipped_gradient) = run(batch, None), run(batch, 0.2)
    assert (clipped_loss >= loss).all()
    assert ((clipped_gradient == gradient) | (clipped_gradient == 0)).all()
    torch.testing.assert_close(run(batch, 1e6), (loss, gradient))


@each_clip
@given(batch=tokens(), shift=st.floats(-10, 10))
def test_a_shift_of_values_and_returns_changes_nothing(clip: float | None, batch: Tokens, shift: float) -> None:
    torch.testing.assert_close(run(changed(batch, lambda tensor: tensor + shift), clip), run(batch, clip))


@each_clip
@pytest.mark.parametrize("seed", range(5))
def test_gradient_equals_finite_differences(clip: float | None, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values, old_values, returns = torch.randn(3, 4, 6, dtype=torch.float64, generator=generator)
    mask = torch.rand(4, 6, generator=generator) < 0.7
    assert torch.autograd.gradcheck(lambda v: value_loss(v, old_values, returns, mask, clip), values.requires_grad_())
