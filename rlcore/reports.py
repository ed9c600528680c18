"""What the stages that put out no table report."""

from __future__ import annotations

from pydantic import Field

from rlcore.shaping.state import ShapingState
from rlcore.store import Report


class UpdateReport(Report):
    """One iteration's optimizer steps. Means are over the tokens that train, of the whole batch."""

    iteration: int
    policy_version: int
    optimizer_steps: int
    skipped: bool
    """No optimizer step was taken: nothing in the batch trains, only the critic does, or no gradient was finite."""
    seconds: float
    metrics: dict[str, float]
    critic: UpdateReport | None = None
    """What the critic's optimizer steps report; null where there is no critic."""


class SyncReport(Report):
    """The engine holds the trainer's weights, checked."""

    policy_version: int
    weights_sha256: str
    """Of what the engines loaded, whichever way it came: see `rlcore.weights.bucket`."""
    bytes: int
    seconds: float
    """From the moment in which the engines stopped until they went on."""
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


class RunState(Report):
    """What an iteration takes over from those before it, beside the weights: the state after one."""

    iteration: int
    shaping: ShapingState
    """Running statistics of the rewards, histories of the prompts."""
    kl_controller: dict[str, float] = Field(default_factory=dict)
    """What the controller of the KL penalty in the rewards goes on from; empty where the coefficient is fixed."""


REPORTS: dict[str, type[Report]] = {
    report.__name__: report for report in (UpdateReport, SyncReport, CheckpointReport, RunState)
}
