"""The cells of the kill matrix: which process is killed, in which stage, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlcore.plan import INPUTS

Moment = Literal["working", "before output", "before ledger"]
"""While the victim computes for the stage; after the stage has computed; between its output and its ledger line."""

SERVICES = ("prefect-worker", "prefect-server", "ray-head")


@dataclass(frozen=True)
class Cell:
    """One kill."""

    stage: str
    victim: str
    """`stage`: the process that runs it. `flow`: the one that submitted it. The role of an actor, `engine core` or
    `grader` for the processes that an actor has under it, or the name of a service."""
    moment: Moment
    call: str | None = None
    """Where the victim is an actor: the method under way, its own or the scheduler's."""

    def __str__(self) -> str:
        return f"{self.stage}: {self.victim} {self.moment}"


def _working(stage: str, **calls: str) -> list[Cell]:
    """Victims, `_` for the space in a name, with the calls they are in."""
    return [Cell(stage, victim.replace("_", " "), "working", call) for victim, call in calls.items()]


ALL = [
    *(Cell(stage, "stage", moment) for stage in INPUTS for moment in ("before output", "before ledger")),
    *(Cell(stage, "flow", "before output") for stage in INPUTS),
    *_working("generate", **dict.fromkeys(("scheduler", "engine", "engine_core", "graders", "grader"), "collect_from")),
    *_working("ref_logprob", reference="logprobs"),
    *_working("old_logprob", trainer="logprobs"),
    *_working("values", critic="values"),
    *_working("update", trainer="update", critic="update"),
    *_working("sync", trainer="next_bucket", engine="load_bucket", engine_core="load_bucket"),
    *_working("evaluate", engine="generate", engine_core="generate", graders="judge", grader="judge"),
    *_working("checkpoint", trainer="save_checkpoint", critic="save_checkpoint"),
    *(Cell(stage, service, "before output") for service in SERVICES for stage in ("generate", "update", "checkpoint")),
]

REPRESENTATIVE = [
    Cell("generate", "stage", "before ledger"),
    Cell("generate", "engine core", "working", "collect_from"),
    Cell("generate", "scheduler", "working", "collect_from"),
    Cell("generate", "graders", "working", "collect_from"),
    Cell("generate", "prefect-worker", "before output"),
    Cell("values", "critic", "working", "values"),
    Cell("advantage", "flow", "before output"),
    Cell("update", "stage", "before ledger"),
    Cell("update", "trainer", "working", "update"),
    Cell("update", "ray-head", "before output"),
    Cell("sync", "engine", "working", "load_bucket"),
    Cell("checkpoint", "trainer", "working", "save_checkpoint"),
]
"""What is quick enough for every change; all of them are cells of the whole matrix."""
