from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from rlcore.algorithms.sample_weights import sample_weights


def test_by_hand() -> None:
    # Difficulties 0, 1, 0.5: 0.5, 2, 1.25. Lengths 10, 20, 30: 1.5, 1, 0.5. Products 0.75, 2, 0.625, sum 3.375.
    weights = sample_weights(
        torch.tensor([True, True, True]),
        difficulty=torch.tensor([0.0, 1.0, 0.5]),
        lengths=torch.tensor([10, 20, 30]),
    )
    assert weights.tolist() == pytest.approx([0.75 * 3 / 3.375, 2 * 3 / 3.375, 0.625 * 3 / 3.375])


def test_a_response_that_does_not_train_weighs_nothing_and_counts_for_nothing() -> None:
    trains = torch.tensor([True, False, True, False])
    difficulty, lengths = torch.tensor([0.2, math.nan, 0.9, 0.5]), torch.tensor([4, 1000, 8, 0])
    weights = sample_weights(trains, difficulty=difficulty, lengths=lengths)
    without = sample_weights(trains[trains], difficulty=difficulty[trains], lengths=lengths[trains])
    assert not weights[~trains].any() and torch.equal(weights[trains], without)


@given(
    rows=st.lists(st.tuples(st.booleans(), st.floats(-1, 2), st.integers(0, 4096)), max_size=20),
    by_difficulty=st.booleans(),
    by_length=st.booleans(),
)
def test_mean_is_one_and_the_bounds_hold(
    rows: list[tuple[bool, float, int]], by_difficulty: bool, by_length: bool
) -> None:
    trains = torch.tensor([row[0] for row in rows], dtype=torch.bool)
    difficulty = torch.tensor([row[1] for row in rows]) if by_difficulty else None
    lengths = torch.tensor([row[2] for row in rows], dtype=torch.int64) if by_length else None
    weights = sample_weights(trains, difficulty=difficulty, lengths=lengths)
    assert weights.dtype == torch.float32 and not weights[~trains].any()
    if trains.any():
        assert weights[trains].mean().item() == pytest.approx(1, rel=1e-6)
        spread = (4 if by_difficulty else 1) * (3 if by_length else 1)
        assert weights[trains].min() > 0 and weights[trains].max() <= spread * weights[trains].min() * (1 + 1e-6)


def test_without_a_criterion_and_with_equal_ones_every_response_weighs_one() -> None:
    trains = torch.ones(3, dtype=torch.bool)
    assert sample_weights(trains).tolist() == [1.0, 1.0, 1.0]
    equal = sample_weights(trains, difficulty=torch.full((3,), 0.3), lengths=torch.full((3,), 7))
    assert equal.tolist() == [1.0, 1.0, 1.0]


def test_a_nan_difficulty_is_refused() -> None:
    with pytest.raises(ValueError, match="row 1 trains and its difficulty is NaN"):
        sample_weights(torch.ones(2, dtype=torch.bool), difficulty=torch.tensor([0.5, math.nan]))
