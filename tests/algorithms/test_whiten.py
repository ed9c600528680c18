from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import assume, given

from rlcore.algorithms.whiten import whiten
from tests.algorithms.strategies import Tokens, tokens


def test_by_hand() -> None:
    # 1, 2, 6: mean 3, unbiased variance (4 + 1 + 9)/2 = 7.
    whitened = whiten(torch.tensor([[1.0, 99.0], [2.0, 6.0]]), torch.tensor([[1, 0], [1, 1]]))
    root = math.sqrt(7.0)
    assert whitened.tolist() == [pytest.approx([-2 / root, 0.0]), pytest.approx([-1 / root, 3 / root])]


@given(batch=tokens(), garbage=st.sampled_from([1e30, math.inf, math.nan]))
def test_tokens_that_train_have_mean_zero_and_unit_deviation(batch: Tokens, garbage: float) -> None:
    values = batch.advantages.where(batch.mask, garbage)
    whitened = whiten(values, batch.mask)
    assert not whitened[~batch.mask].any()
    if batch.mask.sum() >= 2:
        assert whitened[batch.mask].mean().item() == pytest.approx(0, abs=1e-12)
        deviation = values[batch.mask].std().item()
        assert whitened[batch.mask].std().item() == pytest.approx(deviation / (deviation + 1e-6))
    else:
        assert whitened[batch.mask].tolist() == values[batch.mask].tolist()


@given(batch=tokens(), data=st.data(), scale=st.floats(0.5, 100), shift=st.floats(-10, 10))
def test_scale_shift_padding_and_order_change_nothing(
    batch: Tokens, data: st.DataObject, scale: float, shift: float
) -> None:
    assume(batch.mask.sum() >= 2 and batch.advantages[batch.mask].std() > 1e-2)
    order = torch.tensor(data.draw(st.permutations(range(len(batch.mask)))))
    padded = torch.nn.functional.pad(scale * batch.advantages[order] + shift, (1, 2))
    whitened = whiten(padded, torch.nn.functional.pad(batch.mask[order], (1, 2)))
    expected = whiten(batch.advantages, batch.mask)[order]
    torch.testing.assert_close(whitened[:, 1:-2], expected, atol=1e-3, rtol=1e-3)  # 1e-6 beside a small deviation


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6 / 3, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_tokens_become_exactly_zero(value: float, dtype: torch.dtype) -> None:
    assert not whiten(torch.full((3, 7), value, dtype=dtype), torch.ones(3, 7)).any()


def test_large_values_stay_finite_in_float32() -> None:
    whitened = whiten(torch.tensor([[1e30, -1e30, 0.0]]), torch.ones(1, 3))
    assert whitened.dtype == torch.float32 and whitened.tolist() == [pytest.approx([1.0, -1.0, 0.0])]


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (2, 3)])
def test_nothing_that_trains_is_nothing(shape: tuple[int, int]) -> None:
    assert whiten(torch.ones(shape), torch.zeros(shape)).tolist() == torch.zeros(shape).tolist()
