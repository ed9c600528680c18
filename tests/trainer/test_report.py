"""The metrics of an update from those of its optimizer steps."""

from __future__ import annotations

import pytest

from rlcore.trainer.report import over_steps


def test_an_update_reports_means_and_how_far_the_last_step_was_off_policy() -> None:
    steps = [
        {"loss": 1.0, "ratio": 1.0, "logprob_gap_mean": 0.1},
        {"loss": 3.0, "ratio": 1.5, "logprob_gap_mean": 0.7},
    ]
    assert over_steps(steps) == pytest.approx(
        {"loss": 2.0, "ratio": 1.25, "last_step_ratio": 1.5, "logprob_gap_mean": 0.1}
    )
