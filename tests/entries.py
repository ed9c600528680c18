"""Ledger entries for tests that care for little of one."""

from __future__ import annotations

from rlcore.store import BatchRef, LedgerEntry

NO_OUTPUT = BatchRef(path="x", schema_name="LogprobBatch", rows=0, sha256="0")


def ledger_entry(iteration: int, stage: str, output: BatchRef = NO_OUTPUT) -> LedgerEntry:
    return LedgerEntry(
        iteration=iteration,
        stage=stage,
        identity="i",
        inputs={},
        output=output,
        policy_version=iteration,
        started_at=1.0,
        finished_at=2.0,
        seconds=1.0,
        engine_seconds=0.5,
    )
