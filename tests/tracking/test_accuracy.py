from __future__ import annotations

import polars as pl
import pytest

from rlcore.tracking.accuracy import Accuracy, accuracy, wilson_interval


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        (8, 10, 0.4902, 0.9433),  # (0.8 + 0.19207 ± 1.96·√(0.016 + 0.0096036)) / 1.384146
        (0, 10, 0.0, 0.2775),  # 0 … z² / (n + z²)
        (10, 10, 0.7225, 1.0),
        (50, 100, 0.4038, 0.5962),
    ],
)
def test_wilson_interval_by_hand(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson_interval(successes, trials) == pytest.approx((low, high), abs=1e-4)


def test_accuracy_counts_full_rewards_among_the_graded_rows() -> None:
    rows = pl.DataFrame({"reward": [1.0, 0.99, 0.0, None, 1.0]})
    low, high = wilson_interval(2, 4)
    assert accuracy(rows) == Accuracy(0.5, low, high)


def test_without_a_graded_row_there_is_no_accuracy() -> None:
    assert accuracy(pl.DataFrame({"reward": [None, None]}, schema={"reward": pl.Float64})) is None
