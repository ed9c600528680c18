"""How far a run has come, and what follows from that for something that was lost."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from rlcore.config import Config
from rlcore.plan import REPEATABLE, is_repeated, plan_iteration
from rlcore.verification.findings import RESTORE
from rlcore.verification.ledger import Line

Outputs = Collection[tuple[int, str]]
"""Of stages, each as its iteration and its name."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come."""

    newest: int
    """The newest iteration in the ledger."""
    under_way: bool
    """A stage of it, or its row of metrics, is missing: going on with the run starts with it."""
    updates: int
    """Updates in the ledger: the newest version of the policy."""
    good_checkpoints: Collection[int]
    inherited: int
    """Iterations that a fork has from another run: no update of theirs can be applied here."""

    def advice_on_output(self, iteration: int, stage: str, intact: Outputs) -> str:
        """What the loss of a stage's output means, and what brings it back."""
        if self.under_way and iteration == self.newest and is_repeated(stage, self.updates >= iteration):
            return "go on with the run: it is computed again, with everything after it"
        if stage in REPEATABLE and {(iteration, "generate"), (iteration, "reward")} <= {*intact}:
            return f"run the iteration again, which computes it from what is there: {again(iteration)}"
        if stage == "advantage" and iteration > max(self.good_checkpoints, default=0):
            return f"{RESTORE}: without it no trainer can be restored past version {iteration - 1}"
        if stage == "statistics" and iteration >= self.newest - 1:
            return f"{RESTORE}: without it iteration {iteration + 1} cannot be done"
        reader = "report.html" if stage == "evaluate" else "`rlvr show`"
        return f"{RESTORE}: the run goes on without it, {reader} does not have it"

    def advice_on_checkpoint(self, version: int, intact: Outputs) -> str:
        """What becomes of the run without a checkpoint."""
        if any(other > version for other in self.good_checkpoints):
            return "the run does not need it, as a newer one is good: delete what is left of it"
        start = max(self.good_checkpoints, default=0)
        source = f"checkpoints/{start:06d}" if start else "the model that the run started from"
        missing = [number for number in range(start + 1, self.updates + 1) if (number, "advantage") not in intact]
        if start < self.inherited:
            return (
                f"{RESTORE}, or fork the run again: it goes on from a checkpoint of iteration {self.inherited} or later"
            )
        if missing:
            return f"{RESTORE}: from {source}, no trainer can be restored past version {missing[0] - 1}"
        return (
            f"delete what is left of it: the run goes on from {source}, "
            f"and applies the {self.updates - start} recorded batches after it"
        )


def progress_of(
    lines: list[Line],
    logged: Collection[int],
    config: Config | None,
    good_checkpoints: Collection[int],
    inherited: int,
) -> Progress:
    """
    Args:
        logged: the iterations in metrics.jsonl.
        config: None where it cannot be read; then every stage that is there counts as all that were planned.
        inherited: iterations that a fork has from another run.
    """
    newest = max((line.entry.iteration for line in lines), default=0)
    done = {line.entry.stage for line in lines if line.entry.iteration == newest}
    planned = plan_iteration(config, newest).stages if config is not None and newest > inherited else ()
    updates = max((line.entry.iteration for line in lines if line.entry.stage == "update"), default=0)
    return Progress(newest, not done.issuperset(planned) or newest not in logged, updates, good_checkpoints, inherited)


def again(iteration: int) -> str:
    """The command that runs an iteration again."""
    return f"prefect deployment run rlvr/iterate --param config=RUN/config.yaml --param iteration={iteration}"
