"""The files of the stages against their lines in the ledger, and against their schemas."""

from __future__ import annotations

import hashlib
import io

import polars as pl

from rlcore.batches import SCHEMAS, BatchError, validate
from rlcore.reports import REPORTS
from rlcore.store import BatchRef, RunStore, StoreError
from rlcore.verification.findings import reason, short
from rlcore.verification.ledger import Line


def fault(store: RunStore, line: Line, older: list[Line]) -> str | None:
    """What is wrong with the output of a line, and what would be right; None if nothing is.

    Args:
        older: earlier lines of the same stage of the same iteration.
    """
    ref = line.entry.output
    try:
        content = store.read_bytes(ref.path)
    except StoreError:
        return f"is missing: line {line.number} of the ledger has it with {short(ref.sha256)}"
    digest = hashlib.sha256(content).hexdigest()
    if digest != ref.sha256:
        of_older = [earlier.number for earlier in older if earlier.entry.output.sha256 == digest]
        source = f", which is that of line {of_older[-1]}" if of_older else f" ({len(content):,} bytes)"
        return f"is damaged: it has {short(digest)}{source}; line {line.number} of the ledger has {short(ref.sha256)}"
    return _batch_fault(ref, content) if ref.schema_name in SCHEMAS else _report_fault(ref, content)


def _batch_fault(ref: BatchRef, content: bytes) -> str | None:
    try:
        batch = pl.read_parquet(io.BytesIO(content))
    except pl.exceptions.PolarsError as error:
        return f"is what was recorded, and no parquet file: {str(error).splitlines()[0]}"
    try:
        validate(batch, SCHEMAS[ref.schema_name])
    except BatchError as error:
        return f"is what was recorded, and breaks its schema: {error}"
    return None if len(batch) == ref.rows else f"has {len(batch)} rows, the ledger says {ref.rows}"


def _report_fault(ref: BatchRef, content: bytes) -> str | None:
    try:
        REPORTS[ref.schema_name].model_validate_json(content)
    except ValueError as error:
        return f"is what was recorded, and no {ref.schema_name}: {reason(error)}"
    return None
