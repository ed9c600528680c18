"""How often the policy was right on held-out prompts, and how sure that is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import polars as pl

RIGHT = pl.col("reward") >= 1.0
"""A full reward by the first grader of the domain. Null where that failed: neither right nor wrong."""

Z_95 = 1.959964
"""Two-sided 95 % quantile of the standard normal distribution."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """A share of right answers with its 95 % interval, all in [0, 1]."""

    share: float
    low: float
    high: float


def accuracy(evaluation: pl.DataFrame) -> Accuracy | None:
    """Of the graded rows of an EvalBatch; None if there are none."""
    right = evaluation.select(RIGHT.alias("right"))["right"].drop_nulls()
    if len(right) == 0:
        return None
    low, high = wilson_interval(int(right.sum()), len(right))
    return Accuracy(int(right.sum()) / len(right), low, high)


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """95 % interval of a proportion: Wilson, 1927, "Probable inference", the score interval.

    Unlike mean ± 1.96 standard errors it stays within [0, 1] and has a width at 0 and at `trials` successes.
    """
    share = successes / trials
    widening = 1 + Z_95**2 / trials
    centre = (share + Z_95**2 / (2 * trials)) / widening
    margin = Z_95 / widening * math.sqrt(share * (1 - share) / trials + Z_95**2 / (4 * trials**2))
    return max(0.0, centre - margin), min(1.0, centre + margin)
