from __future__ import annotations

import pytest
import torch
from hypothesis import given

from rlcore.algorithms import aggregate
from rlcore.algorithms.aggregation import MODES
from tests.algorithms.strategies import Tokens, tokens

# Losses 1, 2, 3 in the first sequence, 10 in the second (99 is masked); the third is empty.
LOSS = torch.tensor([[1.0, 2.0, 3.0], [10.0, 99.0, 99.0], [99.0, 99.0, 99.0]])
MASK = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", (1 + 2 + 3 + 10) / 4),
        ("seq-mean-token-sum", (6 + 10) / 2),
        ("seq-mean-token-mean", (6 / 3 + 10 / 1) / 2),
        ("seq-mean-token-sum-norm", (6 / 8 + 10 / 8) / 2),
    ],
)
def test_modes_by_hand(mode: str, expected: float) -> None:
    assert aggregate(LOSS, MASK, mode, max_length=8).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", 16 / 10),
        ("seq-mean-token-sum", 16 / 5),
        ("seq-mean-token-mean", 12 / 5),
        ("seq-mean-token-sum-norm", 2 / 5),
    ],
)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_denominators_of_the_whole_batch_replace_the_counts(mode: str, expected: float, as_tensor: bool) -> None:
    num_tokens, num_sequences = (torch.tensor(10), torch.tensor(5)) if as_tensor else (10, 5)
    result = aggregate(LOSS, MASK, mode, num_tokens=num_tokens, num_sequences=num_sequences, max_length=8)
    assert result.item() == pytest.approx(expected)


@pytest.mark.parametrize("mode", MODES)
@given(batch=tokens())
def test_empty_rows_and_padding_are_in_no_denominator(mode: str, batch: Tokens) -> None:
    expected = aggregate(batch.advantages, batch.mask, mode, max_length=8)
    padding = torch.nn.functional.pad
    padded = aggregate(
        padding(batch.advantages, (0, 2, 0, 3), value=7.0), padding(batch.mask, (0, 2, 0, 3)), mode, max_length=8
    )
    torch.testing.assert_close(padded, expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("counts", [{}, {"num_tokens": 0, "num_sequences": 0}])
def test_all_masked_gives_zero_with_zero_gradient(mode: str, counts: dict[str, int]) -> None:
    token_loss = torch.full((2, 3), float("nan")).requires_grad_()
    loss = aggregate(token_loss, torch.zeros(2, 3), mode, max_length=3, **counts)
    (gradient,) = torch.autograd.grad(loss, token_loss)
    assert loss == 0 and not gradient.any()


@pytest.mark.parametrize("mode", MODES)
def test_gradient_equals_finite_differences(mode: str) -> None:
    token_loss = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(lambda loss: aggregate(loss, MASK, mode, max_length=8), token_loss)


def test_bad_modes_are_refused() -> None:
    with pytest.raises(ValueError, match="no aggregation 'mean'; there are token-mean"):
        aggregate(LOSS, MASK, "mean")
    with pytest.raises(ValueError, match="max_length"):
        aggregate(LOSS, MASK, "seq-mean-token-sum-norm")
