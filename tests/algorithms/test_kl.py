from __future__ import annotations

import math

import pytest
import torch

from rlcore.algorithms import kl_estimate
from rlcore.algorithms.kl import KINDS, full_kl

OWN_GRADIENT = [kind for kind in KINDS if not kind.endswith("+")]
K2_GRADIENT = [kind for kind in KINDS if kind.endswith("+")]


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


@pytest.mark.parametrize("kind", OWN_GRADIENT)
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
    if kind.startswith("k3"):
        assert estimate.item() == 10.0


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no KL estimator 'k2\+'; there are k1, abs, k2, k3, k1\+, abs\+, k3\+"):
        kl_estimate(torch.zeros(1, 1), torch.zeros(1, 1), "k2+")


@pytest.mark.parametrize("kind", K2_GRADIENT)
def test_plus_has_the_value_of_the_estimator_and_the_gradient_of_k2(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    logprobs, ref_logprobs = -30 * torch.rand(2, 5, 7, generator=generator)
    logprobs.requires_grad_()
    estimate = kl_estimate(logprobs, ref_logprobs, kind)
    assert torch.equal(estimate, kl_estimate(logprobs, ref_logprobs, kind[:-1]))
    (gradient,) = torch.autograd.grad(estimate.sum(), logprobs)
    torch.testing.assert_close(gradient, (logprobs - ref_logprobs).detach())


def gradient_of_expectation(kind: str, logits: torch.Tensor, ref_logits: torch.Tensor) -> torch.Tensor:
    """E_π[∇ estimate] over the whole vocabulary: what a loss of samples drawn from π descends."""
    logits = logits.clone().requires_grad_()
    logprobs = logits.log_softmax(-1)
    estimate = kl_estimate(logprobs, ref_logits.log_softmax(-1), kind)
    return torch.autograd.grad((logprobs.exp().detach() * estimate).sum(), logits)[0]


LOGITS, REF_LOGITS = torch.randn(2, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", ["k2", *K2_GRADIENT])
def test_the_gradient_of_k2_is_that_of_the_divergence(kind: str) -> None:
    logits = LOGITS.clone().requires_grad_()
    (expected,) = torch.autograd.grad(full_kl(logits, REF_LOGITS).sum(), logits)
    torch.testing.assert_close(gradient_of_expectation(kind, LOGITS, REF_LOGITS), expected)


def test_the_gradients_of_k1_and_k3_are_others() -> None:
    torch.testing.assert_close(gradient_of_expectation("k1", LOGITS, REF_LOGITS), torch.zeros_like(LOGITS))
    near = (LOGITS / 3).requires_grad_()  # so near that no k3 reaches its limit
    (reverse,) = torch.autograd.grad(full_kl(REF_LOGITS / 3, near).sum(), near)
    torch.testing.assert_close(gradient_of_expectation("k3", near.detach(), REF_LOGITS / 3), reverse)


def test_full_kl_by_hand() -> None:
    # π = 1/4, 3/4 and π_ref = 1/2, 1/2: ¼·log ½ + ¾·log 3/2.
    divergence = full_kl(torch.tensor([0.0, math.log(3.0)]), torch.tensor([5.0, 5.0]))
    assert divergence.item() == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5))


def test_full_kl_agrees_with_torch_distributions_and_its_gradient_with_finite_differences() -> None:
    expected = torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=LOGITS), torch.distributions.Categorical(logits=REF_LOGITS)
    )
    torch.testing.assert_close(full_kl(LOGITS, REF_LOGITS), expected)
    assert torch.autograd.gradcheck(lambda x: full_kl(x, REF_LOGITS), LOGITS.clone().requires_grad_())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_full_kl_of_extreme_logits_is_finite_in_float32(dtype: torch.dtype) -> None:
    logits = torch.tensor([[200.0, -200.0, 0.0]], dtype=dtype).requires_grad_()
    divergence = full_kl(logits, torch.tensor([[-200.0, 200.0, 0.0]], dtype=dtype))
    (gradient,) = torch.autograd.grad(divergence.sum(), logits)
    assert divergence.tolist() == [pytest.approx(400.0)] and divergence.dtype == torch.float32
    assert gradient.isfinite().all()
