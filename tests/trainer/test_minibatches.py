"""Which rows each optimizer step trains on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcore.trainer.minibatches import optimizer_steps

ROWS = st.lists(st.integers(0, 1000), min_size=1, max_size=40, unique=True)


def steps(
    rows: list[int], epochs: int = 1, mini_batches: int = 1, seed: int = 0, iteration: int = 1
) -> list[list[int]]:
    return optimizer_steps(rows, epochs=epochs, mini_batches=mini_batches, seed=seed, iteration=iteration)


@given(ROWS, st.integers(1, 4), st.integers(1, 8))
def test_every_epoch_trains_every_row_once_in_parts_of_like_number(
    rows: list[int], epochs: int, mini_batches: int
) -> None:
    made = steps(rows, epochs, mini_batches)
    parts = min(mini_batches, len(rows))
    assert len(made) == epochs * parts
    for epoch in range(epochs):
        of_epoch = made[epoch * parts : (epoch + 1) * parts]
        assert sorted(row for part in of_epoch for row in part) == sorted(rows)
        assert max(map(len, of_epoch)) - min(map(len, of_epoch)) <= 1
        assert all(part and part == sorted(part) for part in of_epoch)


def test_the_division_depends_on_seed_iteration_and_epoch() -> None:
    rows = list(range(64))
    first, second = steps(rows, epochs=2, mini_batches=2)[::2]
    assert first != second
    assert steps(rows, mini_batches=2) == steps(rows, mini_batches=2)
    divisions = [steps(rows, mini_batches=2, seed=seed, iteration=i)[0] for seed in (0, 1) for i in (1, 2)]
    assert len({tuple(division) for division in divisions}) == 4


@pytest.mark.parametrize("mini_batches", [1, 4])
def test_no_rows_no_steps(mini_batches: int) -> None:
    assert steps([], epochs=3, mini_batches=mini_batches) == []
