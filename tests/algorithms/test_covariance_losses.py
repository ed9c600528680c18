"""clip_cov and kl_cov: which tokens they select, and what becomes of these."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from rlcore.algorithms import LossInputs, policy_loss
from rlcore.algorithms.losses import batch_selection
from rlcore.algorithms.losses.covariance import token_covariances
from tests.algorithms.loss_cases import run

# Mean log-probability −2 and mean advantage 1 over the four tokens that train: covariances 1·3, −1·1, 0, 0.
LOGPROBS = torch.tensor([[-1.0, -3.0, -2.0], [-2.0, 99.0, 99.0]], dtype=torch.float64)
ADVANTAGES = torch.tensor([[4.0, 2.0, -1.0], [-1.0, 99.0, 99.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 1], [1, 0, 0]])


def select(name: str, **options: Any) -> list[list[int]]:
    selected = batch_selection(name, LOGPROBS, ADVANTAGES, MASK, **options)
    assert selected is not None
    return selected.int().tolist()


def test_covariances_by_hand() -> None:
    assert token_covariances(LOGPROBS, ADVANTAGES, MASK).tolist() == [3.0, -1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("fraction", "expected"),
    [
        (0.0, [[1, 0, 0], [0, 0, 0]]),  # at least one
        (0.49, [[1, 0, 0], [0, 0, 0]]),  # ⌊1.96⌋
        (0.5, [[1, 0, 1], [0, 0, 0]]),  # of the two that tie at 0 the first
        (0.75, [[1, 0, 1], [1, 0, 0]]),
        (1.0, [[1, 1, 1], [1, 0, 0]]),
    ],
)
def test_kl_cov_selects_exactly_the_highest_covariances(fraction: float, expected: list[list[int]]) -> None:
    assert select("kl_cov", fraction=fraction) == expected


@pytest.mark.parametrize(
    ("low", "high", "fraction", "expected"),
    [
        (1.0, 5.0, 1.0, [[1, 0, 0], [0, 0, 0]]),  # one candidate, however many are asked for
        (0.0, 0.0, 0.5, [[0, 0, 1], [1, 0, 0]]),
        (3.5, 5.0, 0.5, [[0, 0, 0], [0, 0, 0]]),
    ],
)
def test_clip_cov_selects_between_the_bounds(
    low: float, high: float, fraction: float, expected: list[list[int]]
) -> None:
    assert select("clip_cov", covariance_low=low, covariance_high=high, fraction=fraction) == expected


def random_batch(rows: int = 40) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logprobs, advantages = torch.randn(2, rows, 25, generator=generator, dtype=torch.float64)
    return logprobs, advantages, torch.rand(rows, 25, generator=generator) < 0.6


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_the_selection_has_the_exact_count_and_does_not_depend_on_the_order_of_tokens(name: str) -> None:
    logprobs, advantages, mask = random_batch()
    options = {"fraction": 0.05} | ({"covariance_low": 0.1} if name == "clip_cov" else {})
    selected = batch_selection(name, logprobs, advantages, mask, **options)
    assert selected is not None
    assert selected.sum() == math.floor(0.05 * mask.sum()) and not selected[~mask].any()
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    permuted = batch_selection(name, logprobs[order], advantages[order], mask[order], **options)
    assert permuted is not None and torch.equal(permuted, selected[order])
    flat = batch_selection(name, logprobs[mask], advantages[mask], torch.ones(int(mask.sum())), **options)
    assert flat is not None and torch.equal(flat, selected[mask])


def test_a_fraction_of_a_count_is_not_rounded_below_its_value() -> None:
    # 0.29·100 is 28.999999999999996 in floating point.
    logprobs, advantages, _ = random_batch(rows=4)
    selected = batch_selection("kl_cov", logprobs, advantages, torch.ones(4, 25), fraction=0.29)
    assert selected is not None and selected.sum() == 29


def test_clip_cov_chooses_at_random_among_the_candidates_by_its_seed() -> None:
    logprobs, advantages, mask = random_batch()

    def chosen(seed: int) -> torch.Tensor:
        options = {"fraction": 0.02, "covariance_low": 0.5, "covariance_high": 2.0, "seed": seed}
        selected = batch_selection("clip_cov", logprobs, advantages, mask, **options)
        assert selected is not None
        return selected

    assert torch.equal(chosen(0), chosen(0)) and not torch.equal(chosen(0), chosen(1))
    covariances = torch.zeros(40, 25, dtype=torch.float64)
    covariances[mask] = token_covariances(logprobs, advantages, mask)
    for seed in range(5):
        within = covariances[chosen(seed)]
        assert within.min() >= 0.5 and within.max() <= 2.0
    # Not simply the highest of them.
    candidates = covariances[(covariances >= 0.5) & (covariances <= 2.0)].sort(descending=True).values
    assert covariances[chosen(0)].mean() < candidates[: int(chosen(0).sum())].mean()


def test_other_losses_select_nothing() -> None:
    assert batch_selection("ppo", LOGPROBS, ADVANTAGES, MASK, clip_low=0.1) is None


def inputs_of_equal_ratio(ratio: float, **optional: torch.Tensor) -> LossInputs:
    return LossInputs(LOGPROBS + math.log(ratio), LOGPROBS, ADVANTAGES, MASK, **optional)


def test_clip_cov_takes_the_gradient_of_the_selected_tokens_away() -> None:
    # r = 1.1, inside PPO's range: −1.1·A, and 0 for the first token, whose covariance 3 is the only one in [1, 5].
    token_loss, gradient, metrics = run("clip_cov", {}, inputs_of_equal_ratio(1.1))
    expected = [pytest.approx([0.0, -2.2, 1.1]), pytest.approx([1.1, 0.0, 0.0])]
    assert token_loss.tolist() == expected and gradient.tolist() == expected
    assert metrics["covariance_fraction"] == 1 and metrics["clip_fraction_high"] == 0


@pytest.mark.parametrize(
    ("kl_type", "penalty", "slope"),
    [("abs", math.log(1.1), 1.0), ("k3", 1.1 - 1 - math.log(1.1), 0.1)],  # |log r|; r − 1 − log r with gradient r − 1
)
def test_kl_cov_penalises_the_selected_tokens(kl_type: str, penalty: float, slope: float) -> None:
    options = {"fraction": 0.25, "kl_coef": 2.0, "kl_type": kl_type}
    token_loss, gradient, metrics = run("kl_cov", options, inputs_of_equal_ratio(1.1))
    assert token_loss.tolist() == [pytest.approx([-4.4 + 2 * penalty, -2.2, 1.1]), pytest.approx([1.1, 0.0, 0.0])]
    assert gradient.tolist() == [pytest.approx([-4.4 + 2 * slope, -2.2, 1.1]), pytest.approx([1.1, 0.0, 0.0])]
    assert metrics["covariance_fraction"] == 1
    assert metrics["covariance_kl"].item() == pytest.approx(penalty)


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_a_given_selection_is_the_one_that_counts(name: str) -> None:
    selected = torch.tensor([[False, True, False], [False, True, False]])  # The last stands at a masked position.
    _, gradient, metrics = run(name, {}, inputs_of_equal_ratio(1.1, selected=selected))
    _, plain, _ = run("ppo", {}, inputs_of_equal_ratio(1.1))
    assert (gradient != plain).tolist() == [[False, True, False], [False, False, False]]
    assert metrics["covariance_fraction"] == 1


def test_without_a_selection_the_loss_selects_among_its_own_tokens() -> None:
    inputs = inputs_of_equal_ratio(1.1)
    selected = batch_selection("kl_cov", LOGPROBS, ADVANTAGES, MASK, fraction=0.5)
    expected, _ = policy_loss("kl_cov", replace(inputs, selected=selected), fraction=0.5)
    token_loss, _ = policy_loss("kl_cov", inputs, fraction=0.5)
    assert torch.equal(token_loss, expected)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("kl_cov", {"fraction": 1.5}, "fraction is a part of the tokens, from 0 to 1, not 1.5"),
        ("kl_cov", {"kl_coef": -1.0}, "kl_coef must not be negative"),
        ("kl_cov", {"kl_type": "k9"}, "no KL estimator 'k9'"),
        ("clip_cov", {"covariance_low": 9.0}, "covariance_low 9.0 is above covariance_high 5.0"),
    ],
)
def test_options_out_of_range_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        policy_loss(name, inputs_of_equal_ratio(1.0), **options)
