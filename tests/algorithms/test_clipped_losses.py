"""ppo, gspo, gspo_token, gmpo and decoupled_ppo by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from rlcore.algorithms import LossInputs, policy_loss
from tests.algorithms.loss_cases import one_sequence, run


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
    token_loss, gradient, metrics = run("ppo", {"clip_low": 0.2, "clip_high": 0.28}, one_sequence([ratio], [advantage]))
    assert token_loss.item() == pytest.approx(expected)
    assert gradient.item() == pytest.approx(0.0 if clipped else -ratio * advantage)
    assert metrics["clip_fraction_low"] == (clipped == "low")
    assert metrics["clip_fraction_high"] == (clipped == "high")


def test_dual_clip_bounds_the_loss_of_a_bad_token_at_c_times_its_advantage() -> None:
    # r = 5, A = −2: PPO's loss is 10, the bound 3·2 = 6. A good token is untouched.
    token_loss, gradient, metrics = run("ppo", {"dual_clip": 3.0}, one_sequence([5.0, 5.0], [-2.0, 2.0]))
    assert token_loss.tolist() == [pytest.approx([6.0, -2.4])]
    assert not gradient.any()
    assert metrics["clip_fraction_dual"] == 1


def test_gspo_takes_the_geometric_mean_over_the_tokens_that_train() -> None:
    # s = (2·1/2·1.331)^(1/3) = 1.1: inside 1 ± 0.2, so −1.1·2 for every token, and each has a third of its gradient
    # from each of the three losses: −1.1·2. A fourth token, masked, would change s.
    inputs = one_sequence([2.0, 0.5, 1.331, 50.0], [2.0] * 4)
    inputs = replace(inputs, mask=torch.tensor([[1, 1, 1, 0]]))
    token_loss, gradient, _ = run("gspo", {"clip_low": 0.2, "clip_high": 0.2}, inputs)
    assert token_loss.tolist() == [pytest.approx([-2.2, -2.2, -2.2, 0.0])]
    assert gradient.tolist() == [pytest.approx([-2.2, -2.2, -2.2, 0.0])]


def test_gspo_clips_all_tokens_of_a_sequence_or_none() -> None:
    # s = (1.21·1)^(1/2) = 1.1 > 1.0004: −1.0004·2, though the second token's own ratio is 1.
    token_loss, gradient, metrics = run("gspo", {}, one_sequence([1.21, 1.0], [2.0, 2.0]))
    assert token_loss.tolist() == [pytest.approx([-2.0008, -2.0008])]
    assert not gradient.any()
    assert metrics["clip_fraction_high"] == 2 and metrics["clip_fraction_low"] == 0


def test_gspo_token_has_the_values_of_gspo_and_the_advantage_of_each_token_in_its_gradient() -> None:
    # s = (1.21·1)^(1/2) = 1.1 in both; advantages 2 and 4. gspo: d/dlogπ_1 of −s·2 − s·4 is −1.1·6/2 for either token.
    inputs = one_sequence([1.21, 1.0], [2.0, 4.0])
    options = {"clip_low": 0.2, "clip_high": 0.2}
    sequence_loss, sequence_gradient, _ = run("gspo", options, inputs)
    token_loss, token_gradient, _ = run("gspo_token", options, inputs)
    assert token_loss.tolist() == sequence_loss.tolist() == [pytest.approx([-2.2, -4.4])]
    assert sequence_gradient.tolist() == [pytest.approx([-3.3, -3.3])]
    assert token_gradient.tolist() == [pytest.approx([-2.2, -4.4])]


def test_gmpo_clips_each_token_before_the_mean() -> None:
    # A > 0: log-ratios log 2 → 0.4 (clipped) and 0.1: s = e^((0.4 + 0.1)/2) = e^0.25. Only the second has a gradient:
    # each of the two losses −e^0.25·3 passes half of it on.
    token_loss, gradient, metrics = run("gmpo", {}, one_sequence([2.0, math.exp(0.1)], [3.0, 3.0]))
    assert token_loss.tolist() == [pytest.approx([-3 * math.exp(0.25)] * 2)]
    assert gradient.tolist() == [pytest.approx([0.0, -3 * math.exp(0.25)])]
    assert metrics["clip_fraction_high"] == 1 and metrics["clip_fraction_low"] == 0


def test_gmpo_clips_bad_tokens_from_below_only() -> None:
    # A < 0: ratio 2 stays, 1/4 → e^−0.4 = 0.670320: s = (2·0.670320)^(1/2) = 1.157860.
    token_loss, _, metrics = run("gmpo", {}, one_sequence([2.0, 0.25], [-1.0, -1.0]))
    assert token_loss.tolist() == [pytest.approx([1.157860] * 2, rel=1e-6)]
    assert metrics["clip_fraction_high"] == 0 and metrics["clip_fraction_low"] == 1


def decoupled(u: float, w: float, advantage: float, **options: Any) -> tuple[float, float, dict[str, float]]:
    """One token with u = π/π_old and w = π_old/μ: loss, gradient, metrics."""
    inputs = one_sequence([u], [advantage])
    inputs = replace(inputs, rollout_logprobs=inputs.old_logprobs - math.log(w))
    token_loss, gradient, metrics = run("decoupled_ppo", options, inputs)
    return token_loss.item(), gradient.item(), {key: value.item() for key, value in metrics.items()}


@pytest.mark.parametrize(
    ("u", "w", "options", "expected", "gradient"),
    [
        (1.1, 1.5, {}, -3.3, -3.3),  # −1.5·1.1·2
        (1.5, 1.5, {}, -3.6, 0.0),  # −1.5·1.2·2: the trust region is around π_old, not μ
        (1.1, 4.0, {}, -4.4, -4.4),  # truncated: −2·1.1·2
        (1.1, 4.0, {"weight": "mask"}, 0.0, 0.0),
        (1.1, 0.25, {}, -0.55, -0.55),  # −0.25·1.1·2
        (1.1, 0.25, {"weight": "mask"}, 0.0, 0.0),
        (1.1, 4.0, {"weight": "mask", "weight_high": 5.0}, -8.8, -8.8),
    ],
)
def test_decoupled_ppo_weighs_the_surrogate(
    u: float, w: float, options: dict[str, Any], expected: float, gradient: float
) -> None:
    loss, slope, metrics = decoupled(u, w, 2.0, **options)
    assert loss == pytest.approx(expected) and slope == pytest.approx(gradient)
    assert metrics["ratio"] == pytest.approx(u)


def test_decoupled_ppo_without_staleness_is_ppo() -> None:
    inputs = one_sequence([1.5, 0.5, 1.1], [2.0, -2.0, -1.0])
    expected, _ = policy_loss("ppo", inputs)
    token_loss, _ = policy_loss("decoupled_ppo", replace(inputs, rollout_logprobs=inputs.old_logprobs))
    assert token_loss.tolist() == expected.tolist()


def test_decoupled_ppo_approximates_the_old_policy_between_the_engine_and_the_policy() -> None:
    # π/μ = 1.331 and α = 1/3: π_old = μ·1.331^(1/3) = 1.1·μ, so w = 1.1 and u = 1.21: −1.1·1.21·2. What is given
    # as log π_old is not read.
    inputs = one_sequence([1.331], [2.0])
    inputs = replace(inputs, rollout_logprobs=inputs.old_logprobs, old_logprobs=torch.full((1, 1), torch.nan))
    token_loss, gradient, metrics = run("decoupled_ppo", {"approximate_old": 1 / 3, "clip_high": 0.3}, inputs)
    assert token_loss.item() == pytest.approx(-2.662) and gradient.item() == pytest.approx(-2.662)
    assert metrics["ratio"].item() == pytest.approx(1.21)
    assert metrics["correction_weight"].item() == pytest.approx(1.1)


@pytest.mark.parametrize("options", [{}, {"weight": "mask"}, {"approximate_old": 0.5}])
def test_decoupled_ppo_leaves_out_tokens_whose_rollout_logprob_is_not_finite(options: dict[str, Any]) -> None:
    for broken in (-math.inf, math.nan):
        inputs = one_sequence([1.1, 1.1], [2.0, 2.0])
        rollout_logprobs = inputs.old_logprobs.clone()
        rollout_logprobs[0, 1] = broken
        token_loss, gradient, metrics = run(
            "decoupled_ppo", options, replace(inputs, rollout_logprobs=rollout_logprobs)
        )
        assert token_loss[0, 0] != 0 and token_loss[0, 1] == gradient[0, 1] == 0
        assert metrics["correction_fraction_nonfinite"] == 1


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ppo", {"clip_low": 1.5}, "clip_low is how far below 1 a ratio may fall, from 0 to 1, not 1.5"),
        ("ppo", {"clip_low": -0.1}, "clip_low .* not -0.1"),
        ("gspo", {"clip_high": -0.1}, "clip_high must not be negative, but is -0.1"),
        ("ppo", {"dual_clip": 0.9}, "dual_clip is .* above 1, not 0.9"),
        ("gmpo", {"clip_low": -0.4}, "clip_low must not be negative"),
        ("decoupled_ppo", {"weight": "clamp"}, "no correction mode 'clamp'; there are truncate, mask"),
        ("decoupled_ppo", {"weight": "mask", "weight_low": 3.0}, "low <= high"),
        ("decoupled_ppo", {"approximate_old": 1.5}, "approximate_old is .* 0 to 1, not 1.5"),
    ],
)
def test_options_out_of_range_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    zeros = torch.zeros(1, 2)
    with pytest.raises(ValueError, match=message):
        policy_loss(name, LossInputs(zeros, zeros, zeros, zeros, rollout_logprobs=zeros), **options)
