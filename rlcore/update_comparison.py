"""Whether an update that was computed again came out as the recorded one, bit for bit; where not, by how much."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open

from rlcore.reports import UpdateReport

OF_THE_CLOCK = frozenset({"tokens_per_second"})
"""Metrics that no two computations have in common."""

SHOWN_METRICS = 3


@dataclass(frozen=True, slots=True)
class MetricDifference:
    """A figure of the report that is not the same. None: that report does not have it."""

    name: str
    recorded: float | None
    replayed: float | None

    @property
    def relative(self) -> float:
        """The difference in units of the recorded value; infinite where there is none, or it is 0."""
        if self.recorded is None or self.replayed is None or self.recorded == 0:
            return math.inf
        relative = abs(self.replayed - self.recorded) / abs(self.recorded)
        return math.inf if math.isnan(relative) else relative

    def __str__(self) -> str:
        if self.recorded is None or self.replayed is None or not math.isfinite(self.relative):
            return f"{self.name} {_figure(self.replayed)} instead of {_figure(self.recorded)}"
        return f"{self.name} {_figure(self.recorded)} by {self.replayed - self.recorded:+.1e}"


@dataclass(frozen=True, slots=True)
class WeightDifference:
    """How far weights are from those of a checkpoint."""

    checkpoint: str
    tensor: str
    """The one with the largest difference."""
    relative: float
    """That difference, in units of the tensor's largest absolute weight."""

    def __str__(self) -> str:
        return f"by up to {self.relative:.1e} of the largest weight, in {self.tensor} against {self.checkpoint}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One update computed again, beside the recorded one."""

    iteration: int
    metrics: int
    """How many figures were compared."""
    differences: list[MetricDifference]
    """The largest relative one first."""
    weights_sha256: str
    recorded_sha256: str | None
    """None: nothing to compare with."""
    weight_difference: WeightDifference | None = None
    """Where the digests differ and a checkpoint has the recorded weights."""

    @property
    def weights_differ(self) -> bool:
        return self.recorded_sha256 not in (None, self.weights_sha256)

    @property
    def is_same(self) -> bool:
        return not self.weights_differ and not self.differences

    def __str__(self) -> str:
        verdict = "same" if self.is_same else "differs"
        return f"update {self.iteration}: {verdict}: {self._of_weights()}; {self._of_metrics()}"

    def _of_weights(self) -> str:
        if self.recorded_sha256 is None:
            return "no sync has recorded its weights yet"
        if not self.weights_differ:
            return f"weights {self.weights_sha256[:12]}…"
        digests = f"weights {self.weights_sha256[:12]}… instead of {self.recorded_sha256[:12]}…"
        return f"{digests} ({self.weight_difference})" if self.weight_difference else digests

    def _of_metrics(self) -> str:
        if not self.differences:
            return f"{self.metrics} metrics"
        more = len(self.differences) - SHOWN_METRICS
        shown = ", ".join([*map(str, self.differences[:SHOWN_METRICS]), *([f"{more} more"] if more > 0 else [])])
        return f"{len(self.differences)} of {self.metrics} metrics ({shown})"


def compare_reports(recorded: UpdateReport, replayed: UpdateReport) -> tuple[int, list[MetricDifference]]:
    """How many figures the reports have, those of the clock apart, and the ones that differ."""
    before, now = _figures(recorded), _figures(replayed)
    names = sorted(before.keys() | now.keys())
    differences = [
        MetricDifference(name, before.get(name), now.get(name))
        for name in names
        if not _equal(before.get(name), now.get(name))
    ]
    return len(names), sorted(differences, key=lambda difference: -difference.relative)


def compare_weights(replayed: Path, recorded: Path, checkpoint: str) -> WeightDifference:
    """The largest difference between two safetensors files of one model, tensor by tensor."""
    largest = WeightDifference(checkpoint, "no tensor", 0.0)
    with safe_open(replayed, framework="pt") as ours, safe_open(recorded, framework="pt") as theirs:
        for name in theirs.keys():  # noqa: SIM118
            weights = theirs.get_tensor(name).double()
            difference = float((ours.get_tensor(name).double() - weights).abs().max())
            scale = float(weights.abs().max())
            relative = 0.0 if difference == 0 else difference / scale if scale else math.inf
            # What is no number counts as the largest of all.
            if not relative <= largest.relative:
                largest = WeightDifference(checkpoint, name, math.inf if math.isnan(relative) else relative)
    return largest


def _figures(report: UpdateReport, prefix: str = "") -> dict[str, float]:
    figures = {"optimizer_steps": float(report.optimizer_steps), "skipped": float(report.skipped), **report.metrics}
    own = {f"{prefix}{name}": value for name, value in figures.items() if name not in OF_THE_CLOCK}
    return own | (_figures(report.critic, "critic.") if report.critic else {})


def _equal(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return one == other or (math.isnan(one) and math.isnan(other))


def _figure(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"
