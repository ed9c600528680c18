"""What a verification says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeVar

from pydantic import ValidationError
from rich.console import Console

from rlcore.store import RunStore

T = TypeVar("T")

GROUPS = ("configuration", "fork", "ledger", "outputs", "inputs", "checkpoints", "metrics", "rollouts", "leftovers")
"""The headings of findings, in the order in which they are printed."""

RESTORE = "put it back from a copy of the run"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it would be in a run that nothing happened to."""

    group: str
    where: str
    """File, line, iteration, stage: as far as they are known."""
    what: str
    """What is wrong, and what would be right."""
    advice: str
    harmless: bool = False
    """Nothing is lost, and no process stumbles over it."""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}; {self.advice}"


@dataclass
class Verification:
    """How much was looked at, and what was found."""

    outputs: int = 0
    pruned: int = 0
    checkpoints: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def wrong(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.harmless]

    @property
    def summary(self) -> str:
        pruned = f" ({self.pruned} more pruned)" if self.pruned else ""
        verdict = f"{len(self.wrong)} wrong" if self.wrong else "nothing wrong"
        outputs, checkpoints = counted(self.outputs, "stage output"), counted(self.checkpoints, "checkpoint")
        return f"verified: {outputs}{pruned}, {checkpoints}, {verdict}"

    def print(self, console: Console) -> None:
        """One line per finding under the heading of its group, and the summary."""
        ordered = sorted(self.findings, key=lambda finding: GROUPS.index(finding.group))
        for group, findings in groupby(ordered, key=lambda finding: finding.group):
            console.print(f"[bold]{group}[/]")
            for finding in findings:
                mark = "[dim]harmless[/]" if finding.harmless else "[bold red]wrong[/]   "
                console.print(f"  {mark}", end=" ")
                console.print(str(finding), highlight=False, markup=False, soft_wrap=True)
        console.print(self.summary, highlight=False, soft_wrap=True)


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def short(digest: str) -> str:
    return f"sha256 {digest[:12]}…"


def read_lines(
    store: RunStore, path: str, group: str, parse: Callable[[bytes], T], advice: str
) -> tuple[dict[int, T], list[Finding]]:
    """The lines of a file that can be read, by their numbers from 1, and a finding for each that cannot.

    Args:
        parse: raises ValueError for a line that is not one.
        advice: what the user can do about one that is not the last.
    """
    if not store.exists(path):
        return {}, []
    *lines, last = store.read_bytes(path).split(b"\n")
    parsed, findings = {}, []
    for number, line in enumerate(lines, start=1):
        try:
            parsed[number] = parse(line)
        except ValueError as error:
            findings.append(Finding(group, f"{path}:{number}", reason(error), advice))
    if last:
        what = f"half a line ({len(last)} bytes), as an interrupted write leaves it"
        where = f"{path}:{len(lines) + 1}"
        findings.append(Finding(group, where, what, "it is not read, and the next line replaces it", harmless=True))
    return parsed, findings


def reason(error: ValueError) -> str:
    """In one line, what keeps a line or a report from being read."""
    if not isinstance(error, ValidationError):
        return f"cannot be read: {error}"
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"cannot be read: {place + ': ' if place else ''}{first['msg']}"
