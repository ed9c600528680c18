"""The lines of the ledger: each by itself, and against the others."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

from rlcore.batches import SCHEMAS
from rlcore.config import Config
from rlcore.plan import INPUTS, plan_iteration
from rlcore.reports import REPORTS
from rlcore.store import LedgerEntry, RunStore
from rlcore.verification.findings import RESTORE, Finding, read_lines, short

NOT_REPEATED = frozenset({"evaluate", "checkpoint"})
"""Stages that an iteration may be without: when they are due may change while a run goes on."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the ledger, with its number from 1."""

    number: int
    entry: LedgerEntry

    @property
    def where(self) -> str:
        return f"ledger.jsonl:{self.number} (iteration {self.entry.iteration}, {self.entry.stage})"


def read_ledger(store: RunStore) -> tuple[list[Line], list[Finding]]:
    """The ledger's lines, oldest first, and what is wrong with those that are none."""
    advice = f"{RESTORE}; a line of the newest iteration may be deleted: its stage is then computed again"
    entries, findings = read_lines(store, "ledger.jsonl", "ledger", LedgerEntry.model_validate_json, advice)
    lines = []
    for line in (Line(number, entry) for number, entry in entries.items()):
        kind = line.entry.output.schema_name
        if line.entry.stage not in INPUTS:
            what = f"there is no stage {line.entry.stage!r}; there are: {', '.join(INPUTS)}"
            findings.append(Finding("ledger", line.where, what, advice))
        elif kind not in SCHEMAS and kind not in REPORTS:
            what = f"there is no schema {kind!r}; there are: {', '.join([*SCHEMAS, *REPORTS])}"
            findings.append(Finding("ledger", line.where, what, advice))
        else:
            lines.append(line)
    return lines, findings


def contradictions(lines: list[Line]) -> list[Finding]:
    """Two lines of one stage that cannot both be of this run.

    A stage that was computed again has a second line, and the newer one counts: that is no contradiction, unless
    later iterations had gone on from the older one by then.
    """
    of_stage: dict[tuple[int, str], list[Line]] = defaultdict(list)
    for line in lines:
        of_stage[line.entry.iteration, line.entry.stage].append(line)
    findings = []
    for older, newer in (pair for same in of_stage.values() for pair in pairwise(same)):
        before, after = older.entry, newer.entry
        between = {line.entry.iteration for line in lines if older.number < line.number < newer.number}
        built_on = [iteration for iteration in between if iteration > before.iteration]
        if before.identity == after.identity and _input_digests(before) != _input_digests(after):
            what = f"has the identity of line {older.number} and other inputs: an identity is the digest of its inputs"
            advice = f"one of the two lines was changed: {RESTORE}"
        elif _handed_on(before) != _handed_on(after) and built_on:
            what = (
                f"differs from line {older.number} ({' '.join(map(short, _handed_on(before)))} became "
                f"{' '.join(map(short, _handed_on(after)))}) after iteration {min(built_on)} had gone on from that"
            )
            advice = f"keep the line whose file is in iterations/{before.iteration:06d}, and delete the other"
        else:
            continue
        findings.append(Finding("ledger", newer.where, what, advice))
    return findings


def gaps(lines: list[Line], config: Config, inherited: int) -> list[Finding]:
    """Stages that an iteration is without although its update, or a later one, was done.

    Args:
        inherited: iterations at the start that a fork has from another run, which had stages of its own.
    """
    done = {(line.entry.iteration, line.entry.stage) for line in lines}
    updated = max((iteration for iteration, stage in done if stage == "update"), default=0)
    findings = []
    for iteration in range(inherited + 1, updated):
        planned = [stage for stage in plan_iteration(config, iteration).stages if stage not in NOT_REPEATED]
        if missing := [stage for stage in planned if (iteration, stage) not in done]:
            findings.append(
                Finding(
                    "ledger",
                    f"ledger.jsonl (iteration {iteration})",
                    f"has no line of {', '.join(missing)}, and update {updated} is there",
                    RESTORE,
                )
            )
    return findings


def foreign_inputs(lines: list[Line], iteration_under_way: int | None) -> list[Finding]:
    """Inputs of the newest line of each stage that are not the output of the newest line of another."""
    newest = {(line.entry.iteration, line.entry.stage): line for line in lines}
    made = {line.entry.output.path: line for line in newest.values()}
    findings = []
    for line in newest.values():
        for name, ref in line.entry.inputs.items():
            source = made.get(ref.path)
            if source is None:
                what = f"its input {name} ({ref.path}) was never recorded: no line has it for its output"
            elif source.entry.output.sha256 != ref.sha256:
                recorded = source.entry.output.sha256
                what = (
                    f"its input {name} ({ref.path}) had {short(ref.sha256)}, line {source.number} has {short(recorded)}"
                )
            else:
                continue
            repeated = line.entry.iteration == iteration_under_way
            advice = "go on with the run: the stage is done again" if repeated else RESTORE
            findings.append(Finding("inputs", line.where, what, advice))
    return findings


def _input_digests(entry: LedgerEntry) -> dict[str, str]:
    return {name: ref.sha256 for name, ref in entry.inputs.items()}


def _handed_on(entry: LedgerEntry) -> tuple[str, ...]:
    """What later iterations have from a stage: the batch behind the weights, or the run's state."""
    match entry.stage:
        case "update":
            return tuple(_input_digests(entry).values())
        case "statistics":
            return (entry.output.sha256,)
        case _:
            return ()
