"""reinforce, cispo, topr, tis_roll, kimi15, sapo and opmd by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from rlcore.algorithms import LossInputs, policy_loss
from tests.algorithms.loss_cases import one_sequence, run

LOG_HALF = math.log(0.5)


def test_reinforce_is_minus_advantage_times_logprob() -> None:
    inputs = LossInputs(torch.tensor([[-2.0, -3.0]]), torch.zeros(1, 2), torch.tensor([[0.5, -1.0]]), torch.ones(1, 2))
    token_loss, _ = policy_loss("reinforce", inputs)
    assert token_loss.tolist() == [[1.0, -3.0]]


def test_metrics_are_token_sums_of_ratio_and_kl() -> None:
    logprobs, old_logprobs = torch.tensor([[-1.0, -2.0, -9.0]]), torch.tensor([[-1.5, -1.0, -1.0]])
    inputs = LossInputs(logprobs, old_logprobs, torch.ones(1, 3), torch.tensor([[1, 1, 0]]))
    _, metrics = policy_loss("reinforce", inputs)
    # log r = 0.5, −1: r = 1.648721, 0.367879; −log r sums to 0.5; r − 1 − log r = 0.148721 + 0.367879
    assert metrics["ratio"].item() == pytest.approx(2.016601, rel=1e-5)
    assert metrics["approx_kl_k1"].item() == pytest.approx(0.5)
    assert metrics["approx_kl_k3"].item() == pytest.approx(0.516601, rel=1e-5)


def test_cispo_clips_the_weight_and_keeps_the_gradient() -> None:
    # Ratios 6, 1.5, 0.1 of π_old = 1/2, weights 4 (clipped), 1.5, 0.1: −w·A·log π with log π = log 3, log 0.75,
    # log 0.05, and −w·A as gradient.
    token_loss, gradient, metrics = run("cispo", {}, one_sequence([6.0, 1.5, 0.1], [2.0, -1.0, -1.0]))
    expected = [-4 * 2 * math.log(3), 1.5 * math.log(0.75), 0.1 * math.log(0.05)]
    assert token_loss.tolist() == [pytest.approx(expected)]
    assert gradient.tolist() == [pytest.approx([-8.0, 1.5, 0.1])]
    assert metrics["clip_fraction_high"] == 1 and metrics["clip_fraction_low"] == 0


def test_cispo_with_the_unified_mask_drops_what_ppo_would_clip() -> None:
    # Bounds 0.9 and 1.1. Dropped: A > 0 above, A < 0 below. Kept at the bound: A > 0 below, A < 0 above.
    inputs = one_sequence([1.5, 0.5, 0.5, 1.5], [1.0, -1.0, 1.0, -1.0])
    _, gradient, metrics = run("cispo", {"clip_low": 0.1, "clip_high": 0.1, "unified_mask": True}, inputs)
    assert gradient.tolist() == [pytest.approx([0.0, 0.0, -0.9, 1.1])]
    assert metrics["masked_fraction"] == 2
    assert metrics["clip_fraction_high"] == metrics["clip_fraction_low"] == 2


def test_tis_roll_truncates_the_weight_at_one() -> None:
    # log π = log 1 and log 1/4: the ratios 2 → 1 and 1/2.
    token_loss, gradient, metrics = run("tis_roll", {}, one_sequence([2.0, 0.5], [3.0, 3.0]))
    assert token_loss.tolist() == [pytest.approx([0.0, -0.5 * 3 * math.log(0.25)])]
    assert gradient.tolist() == [pytest.approx([-3.0, -1.5])]
    assert metrics["clip_fraction_high"] == 1


def topr_gradient(ratios: list[float], reward: float, **options: Any) -> list[float]:
    """Of tokens with A = −1 each."""
    inputs = one_sequence(ratios, [-1.0] * len(ratios))
    inputs = replace(inputs, sequence_rewards=torch.tensor([reward]))
    return run("topr", options, inputs)[1].squeeze(0).tolist()


@pytest.mark.parametrize(
    ("ratios", "reward", "options", "expected"),
    [
        ([0.5, 0.5], 1.0, {}, [1.0, 1.0]),  # a good sample is not weighed
        ([0.5, 0.5], 0.0, {}, [1.0, 1.0]),  # nor one of reward 0
        ([0.5, 0.5], -1.0, {}, [0.25, 0.25]),  # 0.5·0.5
        ([2.0, 0.25], -1.0, {}, [0.5, 0.5]),  # 2·0.25
        ([2.0, 2.0], -1.0, {}, [1.0, 1.0]),  # min(4, 1)
        ([2.0, 0.25], -1.0, {"ratio": "token"}, [1.0, 0.25]),
        ([0.5, 0.5], 1.0, {"positive_weight": 3.0}, [3.0, 3.0]),
        ([0.5, 0.5], -1.0, {"negative_weight": 2.0}, [0.5, 0.5]),  # 2·0.25
    ],
)
def test_topr_tapers_bad_samples_by_the_ratio_of_their_trajectory(
    ratios: list[float], reward: float, options: dict[str, Any], expected: list[float]
) -> None:
    assert topr_gradient(ratios, reward, **options) == pytest.approx(expected)


def test_topr_is_of_the_policy_that_sampled() -> None:
    # π/π_old = 1/2 and π/μ = 1/4 for both tokens: the trajectory's ratio is 1/16.
    inputs = one_sequence([0.5, 0.5], [-1.0, -1.0])
    inputs = replace(inputs, rollout_logprobs=inputs.old_logprobs - LOG_HALF)
    _, gradient, metrics = run("topr", {}, inputs)
    assert gradient.tolist() == [pytest.approx([1 / 16, 1 / 16])]
    assert metrics["ratio"].item() == pytest.approx(1.0)  # 1/2 + 1/2, over π_old


def test_topr_leaves_out_tokens_whose_rollout_logprob_is_not_finite() -> None:
    inputs = one_sequence([0.5, 0.5], [-1.0, -1.0])
    for broken in (-math.inf, math.nan):
        rollout_logprobs = torch.tensor([[LOG_HALF, broken]], dtype=torch.float64)
        token_loss, gradient, metrics = run("topr", {}, replace(inputs, rollout_logprobs=rollout_logprobs))
        assert gradient.tolist() == [pytest.approx([0.5, 0.0])]
        assert token_loss[0, 1] == 0 and metrics["correction_fraction_nonfinite"] == 1


def test_topr_without_rewards_goes_by_the_sign_of_the_advantage() -> None:
    _, gradient, metrics = run("topr", {}, one_sequence([0.5, 0.5], [2.0, -2.0]))
    assert gradient.tolist() == [pytest.approx([-2.0, 0.5])]  # 2·1/4
    assert metrics["positive_fraction"] == 1 and metrics["clip_fraction_high"] == 0


def single_token(logprob: float, old_logprob: float, advantage: float) -> LossInputs:
    return LossInputs(
        torch.tensor([[logprob]]), torch.tensor([[old_logprob]]), torch.tensor([[advantage]]), torch.ones(1, 1)
    )


def test_kimi15_pulls_back_to_the_old_policy() -> None:
    # log π = −1, log π_old = −1.5, A = 2, τ = 0.1: 2 + 0.05·0.25, and gradient −2 + 0.1·0.5.
    inputs = single_token(-1.0, -1.5, 2.0)
    token_loss, gradient, _ = run("kimi15", {}, inputs)
    assert token_loss.item() == pytest.approx(2.0125) and gradient.item() == pytest.approx(-1.95)


def test_kimi15_keeps_pulling_however_far_the_policy_is() -> None:
    inputs = single_token(-200.0, -0.5, 0.0)
    _, gradient, _ = run("kimi15", {}, inputs)
    assert gradient.item() == pytest.approx(0.1 * -199.5)


def test_sapo_gates_by_the_sign_of_the_advantage() -> None:
    # r = 1 + log 3: σ(log 3) = 3/4 with τ = 1, so −3/4·4·2 = −6; σ(2·log 3) = 9/10 with τ = 2: 9/10·2·2 = 3.6.
    # Gradients −4σ(1 − σ)·r·A: −0.75·r·2 and 0.36·r·2.
    ratio = 1 + math.log(3)
    token_loss, gradient, metrics = run("sapo", {"tau_negative": 2.0}, one_sequence([ratio, ratio], [2.0, -2.0]))
    assert token_loss.tolist() == [pytest.approx([-6.0, 3.6])]
    assert gradient.tolist() == [pytest.approx([-1.5 * ratio, 0.72 * ratio])]
    assert metrics["gate"].item() == pytest.approx(0.75 + 0.36)


def test_opmd_shrinks_the_policy_gradient() -> None:
    token_loss, gradient, _ = run("opmd", {"tau": 3.0}, one_sequence([1.0], [2.0]))
    assert token_loss.item() == pytest.approx(-2 * LOG_HALF / 4) and gradient.item() == -0.5


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cispo", {"clip_low": 2.0}, "clip_low .* from 0 to 1, not 2.0"),
        ("topr", {"ratio": "sequence"}, "no ratio 'sequence' of topr; there are trajectory, token"),
        ("topr", {"negative_weight": -1.0}, "negative_weight must not be negative, but is -1.0"),
        ("kimi15", {"tau": -0.1}, "tau must not be negative"),
        ("opmd", {"tau": -1.0}, "tau must not be negative"),
        ("sapo", {"tau_positive": 0.0}, "tau_positive and tau_negative must be above 0"),
    ],
)
def test_options_out_of_range_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        policy_loss(name, one_sequence([1.0], [1.0]), **options)
