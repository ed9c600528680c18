"""Two computations of an update are the same in every bit, or it is said what differs and by how much."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rlcore.reports import UpdateReport
from rlcore.trainer.checkpoint import sha256_of
from rlcore.update_comparison import Comparison, MetricDifference, compare_reports, compare_weights


def report(critic: UpdateReport | None = None, seconds: float = 1.0, **metrics: float) -> UpdateReport:
    return UpdateReport(
        iteration=3,
        policy_version=3,
        optimizer_steps=1,
        skipped=False,
        seconds=seconds,
        metrics={"tokens_per_second": 100 / seconds, **metrics},
        critic=critic,
    )


def test_how_long_it_took_is_not_compared() -> None:
    assert compare_reports(report(loss=0.5), report(loss=0.5, seconds=2.0)) == (3, [])


def test_metrics_that_differ_are_named_the_largest_difference_first() -> None:
    recorded = report(loss=0.5, grad_norm=2.0, ratio=1.0)
    count, differences = compare_reports(recorded, report(loss=0.5000001, grad_norm=2.2, ratio=1.0))
    assert count == 5
    assert [difference.name for difference in differences] == ["grad_norm", "loss"]
    assert [str(difference) for difference in differences] == ["grad_norm 2 by +2.0e-01", "loss 0.5 by +1.0e-07"]


def test_the_critics_metrics_and_steps_are_compared_too() -> None:
    recorded = report(critic=report(value_loss=0.25))
    skipped = report(value_loss=0.5).model_copy(update={"optimizer_steps": 0, "skipped": True})
    _, differences = compare_reports(recorded, report(critic=skipped))
    assert {difference.name for difference in differences} == {
        "critic.value_loss",
        "critic.optimizer_steps",
        "critic.skipped",
    }


def test_a_metric_that_one_report_lacks_differs() -> None:
    _, differences = compare_reports(report(loss=0.5), report(entropy=0.5))
    assert differences == [MetricDifference("entropy", None, 0.5), MetricDifference("loss", 0.5, None)]
    assert [str(difference) for difference in differences] == [
        "entropy 0.5 instead of none",
        "loss none instead of 0.5",
    ]


def test_what_is_no_number_both_times_is_the_same_and_otherwise_the_largest_difference() -> None:
    assert compare_reports(report(loss=math.nan), report(loss=math.nan)) == (3, [])
    _, differences = compare_reports(report(loss=0.5, grad_norm=1.0), report(loss=math.nan, grad_norm=9.0))
    assert str(differences[0]) == "loss nan instead of 0.5"


def saved(path: Path, **tensors: torch.Tensor) -> Path:
    save_file(tensors, path)
    return path


def test_the_largest_weight_difference_is_in_units_of_its_tensors_largest_weight(tmp_path: Path) -> None:
    recorded = saved(tmp_path / "recorded", a=torch.tensor([0.0, 4.0]), b=torch.tensor([100.0]), c=torch.zeros(2))
    replayed = saved(tmp_path / "replayed", a=torch.tensor([1.0, 4.0]), b=torch.tensor([101.0]), c=torch.zeros(2))
    difference = compare_weights(replayed, recorded, "checkpoints/000003")
    assert (difference.tensor, difference.relative) == ("a", 0.25)
    assert str(difference) == "by up to 2.5e-01 of the largest weight, in a against checkpoints/000003"
    assert compare_weights(recorded, recorded, "").relative == 0.0


@pytest.mark.parametrize("ours", [math.nan, 1.0])
def test_a_weight_that_is_no_number_or_was_zero_is_an_infinite_difference(tmp_path: Path, ours: float) -> None:
    recorded = saved(tmp_path / "recorded", a=torch.zeros(1), b=torch.ones(1))
    replayed = saved(tmp_path / "replayed", a=torch.tensor([ours]), b=torch.ones(1) + 0.5)
    assert compare_weights(replayed, recorded, "").relative == math.inf


def test_the_same_weights_in_another_order_are_the_same_file(tmp_path: Path) -> None:
    """The digest of a sync is of the file, which is so whatever order a layout exports its tensors in."""
    tensors = {"b": torch.ones(2, 3), "a": torch.zeros(4), "c": torch.ones(3, dtype=torch.bfloat16)}
    for name, order in {"one": tensors, "other": dict(reversed(tensors.items()))}.items():
        save_file(order, tmp_path / name, metadata={"format": "pt"})
    assert sha256_of(tmp_path / "one") == sha256_of(tmp_path / "other")


def test_a_comparison_is_one_line() -> None:
    same = Comparison(3, 26, [], "a" * 64, "a" * 64)
    assert same.is_same and str(same) == "update 3: same: weights aaaaaaaaaaaa…; 26 metrics"

    unsynced = Comparison(3, 26, [], "a" * 64, None)
    assert unsynced.is_same and str(unsynced) == "update 3: same: no sync has recorded its weights yet; 26 metrics"

    other_weights = Comparison(3, 26, [], "b" * 64, "a" * 64)
    assert not other_weights.is_same
    assert str(other_weights) == "update 3: differs: weights bbbbbbbbbbbb… instead of aaaaaaaaaaaa…; 26 metrics"

    differences = [MetricDifference(f"m{number}", 1.0, 2.0) for number in range(5)]
    other_metrics = Comparison(3, 26, differences, "a" * 64, "a" * 64)
    assert not other_metrics.is_same
    assert "; 5 of 26 metrics (m0 1 by +1.0e+00, m1 1 by +1.0e+00, m2 1 by +1.0e+00, 2 more)" in str(other_metrics)
