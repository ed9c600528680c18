"""The scheduler's files: its journals, and what it says it did. No line of the ledger has them."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from rlcore.rollout.journal import JOURNAL_FILE, parse_line
from rlcore.rollout.schedule import SCHEDULE_FILE, Schedule
from rlcore.store import RunStore
from rlcore.verification.findings import Finding, read_lines, reason

FILES = frozenset({JOURNAL_FILE, SCHEDULE_FILE})

LOST = (
    "if it is the newest, the prompts that were under way cannot be known: put it back from a copy of the run, or fork "
    "(`rlvr fork`) from a checkpoint before it; else nothing reads it but a fork from there"
)


def unreadable(store: RunStore) -> list[Finding]:
    """What cannot be read of them."""
    found: list[Finding] = []
    for path in sorted(store.directory.glob(f"iterations/*/{JOURNAL_FILE}")):
        found += read_lines(store, _where(store, path), "rollouts", parse_line, LOST)[1]
    for path in sorted(store.directory.glob(f"iterations/*/{SCHEDULE_FILE}")):
        try:
            Schedule.model_validate_json(path.read_bytes())
        except ValidationError as error:
            advice = "delete it: its iteration goes without these metrics"
            found.append(Finding("rollouts", _where(store, path), reason(error), advice))
    return found


def _where(store: RunStore, path: Path) -> str:
    return str(path.relative_to(store.directory))
