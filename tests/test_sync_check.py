"""The engine is trusted with new weights only if it shows that it has them."""

from __future__ import annotations

import math

import polars as pl
import pytest

from rlcore.reports import SyncReport
from rlcore.sync_check import SyncFailed, Transfer, check_sync


def check(engine: list[list[float]], trainer: list[list[float]], engine_version: int = 3) -> SyncReport:
    return check_sync(
        Transfer(bytes=10, weights_sha256="ab", seconds=0.3),
        wanted_version=3,
        engine="engine-0",
        engine_version=engine_version,
        engine_logprobs=pl.Series(engine, dtype=pl.List(pl.Float32)),
        trainer_logprobs=pl.Series(trainer, dtype=pl.List(pl.Float32)),
        tolerance=0.1,
    )


def test_the_report_has_the_mean_and_the_largest_difference_over_all_tokens() -> None:
    report = check([[-1.0, -2.0], [-3.0]], [[-1.0, -2.1], [-3.05]])
    assert (report.policy_version, report.weights_sha256, report.probe_tokens) == (3, "ab", 3)
    assert report.probe_gap_mean == pytest.approx(0.05, abs=1e-6)
    assert report.probe_gap_max == pytest.approx(0.1, abs=1e-6)


def test_another_version_is_refused() -> None:
    with pytest.raises(SyncFailed, match="reports policy version 2 after a sync to 3"):
        check([[-1.0]], [[-1.0]], engine_version=2)


def test_other_logprobs_are_refused_with_the_difference_and_the_tolerance() -> None:
    with pytest.raises(SyncFailed, match=r"differ by 0\.200 nats .*largest 0\.400.* over 2 .*probe_tolerance is 0\.1"):
        check([[-1.0, -1.4]], [[-1.0, -1.0]])


def test_a_logprob_that_is_no_number_is_refused() -> None:
    with pytest.raises(SyncFailed):
        check([[math.nan]], [[-1.0]])


def test_a_probe_without_tokens_proves_nothing() -> None:
    with pytest.raises(SyncFailed, match="nothing to compare engine-0"):
        check([[]], [[]])
