"""What fork.json says of a run against the run."""

from __future__ import annotations

import hashlib

from rlcore.lineage import FORK_FILE, Fork, read_fork
from rlcore.store import RUN_ID_FILE, RunStore, StoreError
from rlcore.verification.findings import RESTORE, Finding, short


def verify_fork(store: RunStore) -> tuple[Fork | None, list[Finding]]:
    """Where the run was forked, if it was, and what is not as it was then."""
    try:
        fork = read_fork(store)
    except StoreError as error:
        advice = f"{RESTORE}: without it the run cannot go on, as its first iterations had other settings"
        return None, [Finding("fork", FORK_FILE, " ".join(str(error).split()), advice)]
    if fork is None:
        return None, []
    findings = []
    ledger = store.read_bytes("ledger.jsonl") if store.exists("ledger.jsonl") else b""
    inherited = b"".join(ledger.splitlines(keepends=True)[: fork.ledger_lines])
    if (digest := hashlib.sha256(inherited).hexdigest()) != fork.ledger_sha256:
        what = (
            f"the first {fork.ledger_lines} lines of ledger.jsonl, of iterations up to {fork.iteration}, have "
            f"{short(digest)}, and had {short(fork.ledger_sha256)} when the run was forked"
        )
        findings.append(Finding("fork", FORK_FILE, what, f"{RESTORE}, or from {fork.url}"))
    if store.exists(RUN_ID_FILE) and store.run_id == fork.run_id:
        what = f"the run has the id of {fork.url}, from which it was forked: each would use the other's engines"
        findings.append(Finding("fork", FORK_FILE, what, "delete the file run-id: the run is given another"))
    return fork, findings
