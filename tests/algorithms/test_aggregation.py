from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from rlcore.algorithms import aggregate
from rlcore.algorithms.aggregation import MODES
from tests.algorithms.strategies import Tokens, splits, tokens

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


@pytest.mark.parametrize("mode", MODES)
@given(data=st.data(), batch=tokens())
def test_micro_batches_and_ranks_sum_to_the_loss_and_gradient_of_the_batch(
    mode: str, data: st.DataObject, batch: Tokens
) -> None:
    def run(rows: Tensor) -> tuple[Tensor, Tensor]:
        token_loss = batch.advantages[rows].clone().requires_grad_()
        counts = {"num_tokens": int(batch.mask.sum()), "num_sequences": int(batch.mask.any(-1).sum())}
        loss = aggregate(token_loss, batch.mask[rows], mode, max_length=16, **counts)
        return loss.detach(), torch.autograd.grad(loss, token_loss)[0]

    order = torch.tensor(data.draw(st.permutations(range(len(batch.mask)))))
    parts = [order[part] for part in data.draw(splits(len(order)))]
    whole_loss, whole_gradient = run(torch.arange(len(order)))
    torch.testing.assert_close(aggregate(batch.advantages, batch.mask, mode, max_length=16), whole_loss)
    torch.testing.assert_close(torch.stack([run(rows)[0] for rows in parts]).sum(), whole_loss)
    for rows in parts:
        torch.testing.assert_close(run(rows)[1], whole_gradient[rows])


@pytest.mark.parametrize("mode", MODES)
@given(data=st.data(), batch=tokens(), scale=st.floats(-100, 100))
def test_aggregation_is_linear_and_blind_to_the_order_of_rows(
    mode: str, data: st.DataObject, batch: Tokens, scale: float
) -> None:
    expected = aggregate(batch.advantages, batch.mask, mode, max_length=16)
    order = torch.tensor(data.draw(st.permutations(range(len(batch.mask)))))
    permuted = aggregate(scale * batch.advantages[order], batch.mask[order], mode, max_length=16)
    torch.testing.assert_close(permuted, scale * expected)


@pytest.mark.parametrize("mode", MODES)
@given(batch=tokens(), value=st.floats(-10, 10))
def test_a_constant_loss_weighs_tokens_as_the_mode_says(mode: str, batch: Tokens, value: float) -> None:
    lengths = batch.mask.sum(-1)[batch.mask.any(-1)].double()
    mean_length = lengths.mean().item() if len(lengths) else 0.0
    expected = {
        "token-mean": value if len(lengths) else 0.0,
        "seq-mean-token-sum": value * mean_length,
        "seq-mean-token-mean": value if len(lengths) else 0.0,
        "seq-mean-token-sum-norm": value * mean_length / 16,
    }[mode]
    constant = torch.full_like(batch.advantages, value)
    assert aggregate(constant, batch.mask, mode, max_length=16).item() == pytest.approx(expected)
