"""When graders fail on so much of a batch that there is no training on the rest."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from rlcore.rewards.interface import GradersFailed, ServicesFailed
from rlcore.shaping.settings import RewardConfig

FAILED = pl.col("reward_status") != "scored"
LOST = pl.col("reward_status") == "infra_error"
"""Graded again, they may be scored."""


def check_failed_share(rewards: Mapping[str, RewardConfig], graded: pl.DataFrame) -> None:
    """
    Args:
        graded: columns domain, and reward_status and detail as in a RewardBatch.

    Raises:
        ServicesFailed: in a domain more responses than `max_failed_share` are without a score, most of them because
            what their graders need failed.
        GradersFailed: otherwise so. Both name the domain, the numbers, and what most of them failed with.
    """
    for domain, rows in graded.sort("domain").group_by("domain", maintain_order=True):
        limit = rewards[str(domain[0])].max_failed_share
        failed = rows.filter(FAILED)
        if len(failed) <= limit * len(rows):
            continue
        lost = len(failed.filter(LOST))
        counts = ", ".join(
            f"{count} {status}" for status, count in sorted(failed["reward_status"].value_counts().rows())
        )
        detail = failed["detail"].value_counts(sort=True)["detail"][0]
        error = ServicesFailed if 2 * lost > len(failed) else GradersFailed
        raise error(
            f"{len(failed)} of {len(rows)} responses of domain {domain[0]} are without a score ({counts}), which is "
            f"more than rewards.{domain[0]}.max_failed_share, {limit:g}; most often: {detail}"
        )
