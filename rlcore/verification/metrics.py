"""metrics.jsonl against the ledger."""

from __future__ import annotations

from collections.abc import Collection

from rlcore.store import RunStore
from rlcore.tracking.history import METRICS_FILE, UNREADABLE_ROW, parse_row
from rlcore.verification.findings import RESTORE, Finding, read_lines
from rlcore.verification.progress import again


def read_rows(store: RunStore) -> tuple[dict[int, int], list[Finding]]:
    """The iteration of each row, by line number, and what is wrong with the lines that are no row."""
    return read_lines(store, METRICS_FILE, "metrics", lambda line: int(parse_row(line)["iteration"]), UNREADABLE_ROW)


def mismatches(rows: dict[int, int], recorded: Collection[int]) -> list[Finding]:
    """Iterations that are not once in both.

    Args:
        rows: as of `read_rows`.
        recorded: the iterations in the ledger.
    """
    findings = []
    first: dict[int, int] = {}
    for number, iteration in rows.items():
        where = f"{METRICS_FILE}:{number} (iteration {iteration})"
        if first.setdefault(iteration, number) != number:
            what = f"line {first[iteration]} is of the same iteration, and each has one"
            findings.append(Finding("metrics", where, what, "delete one of the two"))
        elif iteration not in recorded:
            what = "the ledger has no line of that iteration"
            findings.append(Finding("metrics", where, what, f"delete the line, or {RESTORE} what the ledger lacks"))
    for iteration in sorted(set(recorded) - first.keys()):
        where, what = f"{METRICS_FILE} (iteration {iteration})", "has no row, and its stages are in the ledger"
        if iteration == max(recorded):
            findings.append(Finding("metrics", where, what, "going on with the run writes it", harmless=True))
        else:
            advice = f"run the iteration again, its stages are not repeated: {again(iteration)}"
            findings.append(Finding("metrics", where, what, advice))
    return findings
