from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from rlcore.algorithms import LossInputs
from rlcore.algorithms.correction import LEVELS, MODES, rollout_correction
from tests.algorithms.strategies import loss_inputs, splits

# Ratios π_old/μ: 4, 1 | 1/2, 1/8 with a masked third token.
RATIOS = torch.tensor([[4.0, 1.0, 99.0], [0.5, 0.125, 99.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 0], [1, 1, 0]])


def correct(**options: Any) -> tuple[list[list[float]], dict[str, float]]:
    options = {"low": 0.5, "high": 2.0} | options
    weights, metrics = rollout_correction(RATIOS.log(), torch.zeros_like(RATIOS), MASK, **options)
    return weights.tolist(), {key: value.item() for key, value in metrics.items()}


@pytest.mark.parametrize(
    ("level", "mode", "expected"),
    [
        ("token", "truncate", [[2.0, 1.0, 0.0], [0.5, 0.125, 0.0]]),
        ("token", "mask", [[0.0, 1.0, 0.0], [0.5, 0.0, 0.0]]),
        # Geometric means (4·1)^(1/2) = 2 and (1/16)^(1/2) = 1/4, products 4 and 1/16.
        ("geometric", "truncate", [[2.0, 2.0, 0.0], [0.25, 0.25, 0.0]]),
        ("geometric", "mask", [[2.0, 2.0, 0.0], [0.0, 0.0, 0.0]]),
        ("sequence", "truncate", [[2.0, 2.0, 0.0], [1 / 16, 1 / 16, 0.0]]),
        ("sequence", "mask", [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]),
    ],
)
def test_levels_and_modes_by_hand(level: str, mode: str, expected: list[list[float]]) -> None:
    # A hair wider than [0.5, 2], so that a ratio that equals a bound is within it whatever its rounding.
    weights, _ = correct(level=level, mode=mode, low=0.5 - 1e-12, high=2.0 + 1e-12)
    assert weights == [pytest.approx(row) for row in expected]


def test_metrics_by_hand() -> None:
    # Weights 2, 1, 1/2, 1/8: sum 3.625, of squares 4 + 1 + 1/4 + 1/64.
    _, metrics = correct(level="token", mode="truncate")
    assert metrics == pytest.approx(
        {
            "correction_fraction_high": 1,
            "correction_fraction_nonfinite": 0,
            "correction_weight": 3.625,
            "correction_weight_square": 5.265625,
        }
    )
    _, metrics = correct(level="token", mode="mask")
    assert metrics["correction_fraction_high"] == 1 and metrics["correction_fraction_low"] == 1
    assert metrics["correction_weight"] == pytest.approx(1.5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("level", "weight"), [("token", 1.5), ("geometric", 1.5), ("sequence", 1.5)])
@pytest.mark.parametrize("broken", [-math.inf, math.nan])
def test_a_rollout_logprob_that_is_not_finite_is_a_masked_token(
    level: str, weight: float, mode: str, broken: float
) -> None:
    old_logprobs = torch.tensor([[math.log(1.5), -1.0]])
    rollout_logprobs = torch.tensor([[0.0, broken]])
    weights, metrics = rollout_correction(
        old_logprobs, rollout_logprobs, torch.ones(1, 2), level=level, mode=mode, low=0.5, high=2.0
    )
    assert weights.tolist() == [pytest.approx([weight, 0.0])]
    assert metrics["correction_fraction_nonfinite"] == 1


each_kind = pytest.mark.parametrize(("level", "mode"), [(level, mode) for level in LEVELS for mode in MODES])


@each_kind
@given(data=st.data(), batch=loss_inputs())
def test_micro_batches_give_the_weights_and_metrics_of_the_batch(
    level: str, mode: str, data: st.DataObject, batch: LossInputs
) -> None:
    assert batch.rollout_logprobs is not None
    rollout_logprobs = batch.rollout_logprobs

    def run(rows: slice) -> tuple[Tensor, dict[str, Tensor]]:
        tensors = (batch.old_logprobs[rows], rollout_logprobs[rows], batch.mask[rows])
        return rollout_correction(*tensors, level=level, mode=mode, low=0.5, high=2.0)

    weights, metrics = run(slice(None))
    parts = [run(rows) for rows in data.draw(splits(len(batch.mask)))]
    torch.testing.assert_close(torch.cat([part for part, _ in parts]), weights)
    for key, value in metrics.items():
        torch.testing.assert_close(torch.stack([part[key] for _, part in parts]).sum(), value)


@each_kind
@given(batch=loss_inputs(), garbage=st.sampled_from([1e4, math.inf, -math.inf, math.nan]))
def test_padding_and_what_stands_at_masked_positions_change_nothing(
    level: str, mode: str, batch: LossInputs, garbage: float
) -> None:
    assert batch.rollout_logprobs is not None
    options: dict[str, Any] = {"level": level, "mode": mode, "low": 0.5, "high": 2.0}
    weights, metrics = rollout_correction(batch.old_logprobs, batch.rollout_logprobs, batch.mask, **options)
    mask = torch.nn.functional.pad(batch.mask, (0, 3))

    def spoil(values: Tensor) -> Tensor:
        return torch.nn.functional.pad(values, (0, 3)).where(mask, garbage)

    spoilt, spoilt_metrics = rollout_correction(
        spoil(batch.old_logprobs), spoil(batch.rollout_logprobs), mask, **options
    )
    torch.testing.assert_close(spoilt[:, :-3], weights)
    assert not spoilt[~mask].any()
    torch.testing.assert_close(spoilt_metrics, metrics)


@each_kind
@given(batch=loss_inputs())
def test_without_a_gap_every_weight_is_one(level: str, mode: str, batch: LossInputs) -> None:
    weights, metrics = rollout_correction(
        batch.old_logprobs, batch.old_logprobs, batch.mask, level=level, mode=mode, low=0.5, high=2.0
    )
    assert torch.equal(weights, batch.mask.to(weights.dtype))
    assert metrics["correction_weight"] == metrics["correction_weight_square"] == batch.mask.sum()


@each_kind
@pytest.mark.parametrize("difference", [-200.0, -30.0, 30.0, 200.0])
def test_extreme_gaps_stay_finite_in_float32(level: str, mode: str, difference: float) -> None:
    gap = torch.full((1, 64), difference)
    weights, metrics = rollout_correction(
        gap, torch.zeros(1, 64), torch.ones(1, 64), level=level, mode=mode, low=0.0, high=math.inf
    )
    # Clamped: e^±20, of the mean and of the sum too.
    assert weights.tolist() == [pytest.approx([math.exp(math.copysign(20, difference))] * 64, rel=1e-4)]
    assert all(value.isfinite() for value in metrics.values())


def test_weights_carry_no_gradient() -> None:
    old_logprobs = torch.zeros(1, 2).requires_grad_()
    weights, _ = rollout_correction(
        old_logprobs, torch.zeros(1, 2), torch.ones(1, 2), level="token", mode="truncate", low=0.5, high=2.0
    )
    assert not weights.requires_grad


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "sentence"}, "no correction level 'sentence'; there are token, geometric, sequence"),
        ({"mode": "clip"}, "no correction mode 'clip'; there are truncate, mask"),
        ({"low": 3.0}, "low=3.0 and high=2.0"),
        ({"low": -1.0}, "0 <= low"),
        ({"low": 0.0, "high": 0.0}, "high > 0"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        correct(**{"level": "token", "mode": "truncate"} | options)
