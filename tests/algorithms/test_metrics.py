from __future__ import annotations

import pytest
import torch

from rlcore.algorithms.metrics import effective_sample_size, logprob_gap, ratio_quantiles


def test_quantiles_of_the_ratio_are_those_of_the_tokens_that_train() -> None:
    ratios = torch.rand(10, 20, generator=torch.Generator().manual_seed(0)) + 0.5
    mask = torch.rand(10, 20, generator=torch.Generator().manual_seed(1)) < 0.5
    quantiles = ratio_quantiles(ratios.log(), torch.zeros(10, 20), mask)
    expected = torch.quantile(ratios[mask], torch.tensor([0.01, 0.5, 0.99]))
    torch.testing.assert_close(torch.stack(list(quantiles.values())), expected)
    assert list(quantiles) == ["ratio_p01", "ratio_p50", "ratio_p99"]


def test_gap_by_hand() -> None:
    # |−1 + 1.5| = 0.5, |−2 + 1| = 1; the third token is masked.
    gap = logprob_gap(torch.tensor([-1.0, -2.0, -9.0]), torch.tensor([-1.5, -1.0, 0.0]), torch.tensor([1, 1, 0]))
    assert gap["logprob_gap_mean"].item() == 0.75 and gap["logprob_gap_max"].item() == 1.0


def test_effective_sample_size_by_hand() -> None:
    # Weights 1, 1, 2: 4² / (3·6).
    weights = torch.tensor([1.0, 1.0, 2.0, 50.0])
    size = effective_sample_size(weights.log(), torch.zeros(4), torch.tensor([1, 1, 1, 0]))
    assert size.item() == pytest.approx(16 / 18)


def test_effective_sample_size_is_one_over_n_where_one_token_has_all_the_weight() -> None:
    logprobs = torch.tensor([0.0, -200.0, -200.0, -200.0])
    rollout_logprobs = torch.tensor([-200.0, 0.0, 0.0, 0.0])
    assert effective_sample_size(logprobs, rollout_logprobs, torch.ones(4)).item() == pytest.approx(0.25)


def whole_batch_metrics(logprobs: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """All of them, with the policy, its old self and the engine the same."""
    return {
        **ratio_quantiles(logprobs, logprobs, mask),
        **logprob_gap(logprobs, logprobs, mask),
        "effective_sample_size": effective_sample_size(logprobs, logprobs, mask),
    }


def test_on_policy_values() -> None:
    logprobs = -torch.rand(4, 6, generator=torch.Generator().manual_seed(0))
    metrics = whole_batch_metrics(logprobs, torch.ones(4, 6))
    assert {key: value.item() for key, value in metrics.items()} == {
        "ratio_p01": 1.0,
        "ratio_p50": 1.0,
        "ratio_p99": 1.0,
        "logprob_gap_mean": 0.0,
        "logprob_gap_max": 0.0,
        "effective_sample_size": 1.0,
    }


@pytest.mark.parametrize("shape", [(2, 3), (0,)])
def test_without_a_token_that_trains_everything_is_zero(shape: tuple[int, ...]) -> None:
    logprobs = torch.zeros(shape)
    metrics = whole_batch_metrics(logprobs, torch.zeros(shape))
    assert all(value == 0 for value in metrics.values())
