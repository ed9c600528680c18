"""Rewards minus a mean, divided by a standard deviation, each over its own set of rewards."""

from __future__ import annotations

import polars as pl

from rlcore.shaping.settings import Scope
from rlcore.shaping.state import RunningStatistics

EPSILON = 1e-6


def normalise(
    values: pl.Expr, group: str, mean_type: Scope, std_type: Scope, running: RunningStatistics | None
) -> pl.Expr:
    """(x − mean) / (std + 1e-6), with the unbiased standard deviation; x − mean where that is 0 or not defined.

    ROLL's reward normalisation (norm_mean_type, norm_std_type). One value, or equal ones, give no scale to divide by:
    dividing by the 1e-6 alone would make a million of a reward of 1.

    Args:
        values: rewards of one domain; nulls stay null and are in no statistic.
        group: column that is equal within a group.
        mean_type, std_type: over what, each on its own; `none` subtracts or divides nothing.
        running: of all values so far, these included; needed for `running`.
    """
    means = {
        "group": values.mean().over(group),
        "batch": values.mean(),
        "running": pl.lit(running.mean if running else None, dtype=pl.Float64),
        "none": pl.lit(0.0),
    }
    stds = {
        "group": _std(values).over(group),
        "batch": _std(values),
        "running": pl.lit(running.std if running else None, dtype=pl.Float64),
        "none": pl.lit(None, dtype=pl.Float64),
    }
    return (values - means[mean_type]) / (stds[std_type] + EPSILON).fill_null(1.0)


def _std(values: pl.Expr) -> pl.Expr:
    """Null for equal values. They are told by their extremes: the rounding of their mean would be a variance."""
    return pl.when(values.max() > values.min()).then(values.std(ddof=1))
