"""The check at the end of `sync`: the engine serves the trainer's weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from rlcore.reports import SyncReport

PROBE_ROWS = 8
"""Responses in the probe. In bf16 a single short one differs by more than the mean does."""


class SyncFailed(RuntimeError):
    """The engine does not hold the weights it was given."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One hand-over of weights."""

    bytes: int
    weights_sha256: str
    seconds: float


def check_sync(
    transfer: Transfer,
    *,
    wanted_version: int,
    engine: str,
    engine_version: int,
    engine_logprobs: pl.Series,
    trainer_logprobs: pl.Series,
    tolerance: float,
) -> SyncReport:
    """Compare version and log-probabilities of the probe (one list of nats per response on either side).

    Args:
        engine: its name, for people.

    Raises:
        SyncFailed: another version, or a mean difference above `tolerance`. It says by how much.
    """
    if engine_version != wanted_version:
        raise SyncFailed(f"{engine} reports policy version {engine_version} after a sync to {wanted_version}")
    gap = np.abs(engine_logprobs.explode().to_numpy() - trainer_logprobs.explode().to_numpy())
    if not gap.size:
        raise SyncFailed(f"no response of the batch has a token: nothing to compare {engine} and the trainer on")
    mean, largest = float(gap.mean()), float(gap.max())
    if not mean <= tolerance:
        raise SyncFailed(
            f"after the sync to version {wanted_version} {engine} and the trainer differ by {mean:.3f} nats on average "
            f"(largest {largest:.3f}) over {gap.size} probe tokens; sync.probe_tolerance is {tolerance:g}"
        )
    return SyncReport(
        policy_version=wanted_version,
        weights_sha256=transfer.weights_sha256,
        bytes=transfer.bytes,
        seconds=transfer.seconds,
        probe_tokens=gap.size,
        probe_gap_mean=mean,
        probe_gap_max=largest,
    )
