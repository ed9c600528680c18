"""What the stages that put out no table report."""

from __future__ import annotations

from rlcore.store import Report


class UpdateReport(Report):
    """One iteration's optimizer steps. Means are over the tokens that train, of the whole batch."""

    iteration: int
    policy_version: int
    optimizer_steps: int
    skipped: bool
    """Nothing in the batch trained; the weights are as they were."""
    seconds: float
    metrics: dict[str, float]


class SyncReport(Report):
    """The engine holds the trainer's weights, checked."""

    policy_version: int
    bytes: int
    export_seconds: float
    load_seconds: float
    probe_tokens: int
    probe_gap_mean: float
    """Mean |log-probability by the engine − by the trainer| over the probe's tokens, in nats."""
    probe_gap_max: float


class CheckpointReport(Report):
    """A published checkpoint."""

    policy_version: int
    path: str
    """Relative to the run directory. Its folder `huggingface` is what transformers and vLLM load."""
    bytes: int
    seconds: float


REPORTS: dict[str, type[Report]] = {report.__name__: report for report in (UpdateReport, SyncReport, CheckpointReport)}
