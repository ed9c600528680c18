from __future__ import annotations

import math

import pytest
import torch

from rlcore.algorithms import kl_estimate

KINDS = ["k1", "abs", "k2", "k3"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("k1", [0.5, -1.0]),
        ("abs", [0.5, 1.0]),
        ("k2", [0.125, 0.5]),
        ("k3", [math.exp(-0.5) + 0.5 - 1, math.exp(1.0) - 1.0 - 1]),
    ],
)
def test_estimators_by_hand(kind: str, expected: list[float]) -> None:
    estimate = kl_estimate(torch.tensor([[-1.0, -3.0]]), torch.tensor([[-1.5, -2.0]]), kind)
    assert estimate.tolist() == [pytest.approx(expected)]


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_unbiased_estimators_average_to_the_divergence(kind: str) -> None:
    p, q = torch.tensor([0.7, 0.2, 0.1]).double(), torch.tensor([0.5, 0.2, 0.3]).double()
    expectation = (p * kl_estimate(p.log(), q.log(), kind)).sum()
    torch.testing.assert_close(expectation, (p * (p / q).log()).sum())


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_has_no_divergence_from_itself(kind: str) -> None:
    logprobs = torch.tensor([[-0.1, -7.0]])
    assert not kl_estimate(logprobs, logprobs, kind).any()


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_equals_finite_differences(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    logprobs, ref_logprobs = -3 * torch.rand(2, 3, 4, generator=generator, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: kl_estimate(x, ref_logprobs, kind), logprobs.requires_grad_())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("difference", [-200.0, -30.0, 30.0, 200.0])
def test_extreme_differences_stay_finite_in_float32(kind: str, difference: float) -> None:
    logprobs = torch.tensor([[difference]]).requires_grad_()
    estimate = kl_estimate(logprobs, torch.zeros(1, 1), kind)
    (gradient,) = torch.autograd.grad(estimate.sum(), logprobs)
    assert estimate.isfinite().all() and gradient.isfinite().all()
    if kind == "k3":
        assert estimate.item() == 10.0


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="no KL estimator 'kl'; there are k1, abs, k2, k3"):
        kl_estimate(torch.zeros(1, 1), torch.zeros(1, 1), "kl")
