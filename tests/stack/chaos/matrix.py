"""The kill matrix: in every iteration of a run one process is killed, and the run is retried as the dashboard does.

    python -m tests.stack.chaos.matrix          all cells, a table, and the last line `kill matrix: N cells, N passed`

What each iteration must come to is what a run that nothing happened to came to: to the bit, so everything is float32
on one thread, and the engine decodes one request at a time.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rlcore.compose import compose
from rlcore.plan import plan_iteration
from rlcore.pretrained import smollm2_directory
from rlcore.reports import SyncReport
from rlcore.store import LedgerEntry, RunStore
from tests.stack.chaos.cells import ALL, Cell
from tests.stack.chaos.retrying import Retrying
from tests.stack.conftest import save_tiny_llama
from tests.stack.pipeline import Up, store_of, tiny_training, train, up

HOOK = Path(__file__).parent / "hook"
SETTINGS = [
    # Every stage that there is.
    *("algorithm=ppo", "algorithm.kl_loss_coef=0.01", "algorithm.old_logprobs=recompute"),
    *("algorithm.shaping.norm_mean_type=running", "algorithm.mini_batches=2"),
    *("eval_steps=1", "save_steps=2", "save_best=null", "trainer.learning_rate=1e-4"),
    *("hardware.max_num_seqs=1", "tracking.wandb=off", "tracking.tensorboard=false"),
]
CELL_SECONDS = 240.0
RETRIES = 3
"""How often Retry may have to be pressed."""
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Verdict:
    """What became of a cell."""

    cell: Cell
    iteration: int
    again: list[str]
    """Stages that began to compute more than once."""
    retries: int
    """How often Retry was pressed."""
    updates: int
    responses: int
    seconds: float
    faults: list[str]

    @property
    def passed(self) -> bool:
        return not self.faults


class Matrix:
    """A run in whose iterations processes are killed, beside one that nothing happened to."""

    def __init__(self, running: Up, plan: Path, overrides: list[str], iterations: int) -> None:
        self._up = running
        self._plan = plan
        self._overrides = [*overrides, *SETTINGS, f"iterations={iterations}"]
        self._reference = store_of(overrides, "undisturbed")
        self._names = iter(f"killed-{number}" for number in range(1, 1000))
        self._start_over(0)
        undisturbed = train([*self._overrides, "run=undisturbed"], running.environment)
        output, _ = undisturbed.communicate()
        assert undisturbed.returncode == 0, output

    def run(self, cell: Cell) -> Verdict:
        """The run's next iteration that has the cell's stage, with its kill."""
        while cell.stage not in plan_iteration(self._config, self._next):
            self._iterate(None)
        return self._iterate(cell)

    def _start_over(self, finished: int) -> None:
        """A run of its own that is where the undisturbed one was after iteration `finished`."""
        self._name = next(self._names)
        self._store = store_of(self._overrides, self._name)
        self._config = compose("arithmetic", [*self._overrides, f"run={self._name}"])
        self._next = finished + 1
        for entry in self._reference.ledger() if finished else []:
            if entry.iteration <= finished:
                self._store.write_bytes(entry.output.path, self._reference.read_bytes(entry.output.path))
                self._store.record(entry)
        for line in self._reference.read_bytes("metrics.jsonl").decode().splitlines() if finished else []:
            if json.loads(line)["iteration"] <= finished:
                self._store.append_line("metrics.jsonl", line)

    def _iterate(self, cell: Cell | None) -> Verdict:
        number, struck = self._next, self._plan.with_name(f"struck-{time.time_ns()}")
        started = time.monotonic()
        self._plan.with_suffix(".log").write_text("")
        flow_run = self._up.start_deployment([*self._overrides, f"run={self._name}"])
        self._write_plan(cell, number, flow_run, struck)
        faults, retries = [], 0
        try:
            retries = self._see_through(flow_run)
        except TimeoutError as error:
            faults.append(str(error))
        if cell and not struck.exists():
            faults.append("nothing was killed")
        faults += self._faults(number)
        verdict = Verdict(
            cell=cell or Cell("none", "none", "working"),
            iteration=number,
            again=[stage for stage, begun in Counter(self._begun(number)).items() if begun > 1],
            retries=retries,
            updates=len([entry for entry in self._store.ledger() if entry.stage == "update"]),
            responses=self._responses(number),
            seconds=time.monotonic() - started,
            faults=faults,
        )
        self._next += 1
        if faults:
            self._start_over(number)
        return verdict

    def _write_plan(self, cell: Cell | None, iteration: int, flow_run: str, struck: Path) -> None:
        plan = cell and {
            "stage": cell.stage,
            "victim": cell.victim,
            "moment": cell.moment,
            "call": cell.call,
            "iteration": iteration,
            "flow_run": flow_run,
            "struck": str(struck),
            "services": {service.name: service.pid for service in self._up.services.processes},
        }
        complete = self._plan.with_suffix(".new")
        complete.write_text(json.dumps(plan or {}))
        complete.replace(self._plan)

    def _see_through(self, flow_run: str) -> int:
        """Retry until the flow run is completed; how often that was.

        Raises:
            TimeoutError: it is not in CELL_SECONDS, or it failed more often than RETRIES.
        """
        retrying, deadline = Retrying(self._up, flow_run, RETRIES), time.monotonic() + CELL_SECONDS
        while time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            if retrying.look():
                return retrying.presses
        raise TimeoutError(f"not completed in {CELL_SECONDS:.0f} s")

    def _faults(self, number: int) -> list[str]:
        """What is not as in the run that nothing happened to."""
        faults = []
        planned = plan_iteration(self._config, number).stages
        lines = [entry for entry in self._store.ledger() if entry.iteration == number]
        recorded = Counter(entry.stage for entry in lines)
        if recorded != Counter(planned):
            faults.append(f"ledger lines {dict(recorded)}")
        for entry in lines:
            late = [event for event in self._log("began", number) if event["at"] > entry.finished_at]
            if entry.stage in (event["stage"] for event in late):
                faults.append(f"{entry.stage} was repeated after it was finished")
        updates = [entry.iteration for entry in self._store.ledger() if entry.stage == "update"]
        if updates != list(range(1, number + 1)):
            faults.append(f"updates {updates}")
        rollout = self._config.rollout
        wanted = rollout.rollout_batch_size * rollout.num_return_sequences_in_group
        if self._responses(number) != wanted:
            faults.append(f"{self._responses(number)} responses, not {wanted}")
        if _weights(self._store, number) != _weights(self._reference, number):
            faults.append("other weights")
        return faults

    def _responses(self, number: int) -> int:
        """How many different ones the iteration's rollouts hold."""
        entry = self._store.find(number, "generate")
        return self._store.read_batch(entry.output)["sample_id"].n_unique() if entry else 0

    def _begun(self, number: int) -> list[str]:
        return [event["stage"] for event in self._log("began", number)]

    def _log(self, event: str, number: int) -> list[dict[str, Any]]:
        lines = map(json.loads, self._plan.with_suffix(".log").read_text().splitlines())
        return [line for line in lines if line["event"] == event and line["iteration"] == number]


def _weights(store: RunStore, iteration: int) -> str | None:
    """Digest of what the iteration's sync handed to the engine."""
    entry: LedgerEntry | None = store.find(iteration, "sync")
    return store.read_report(entry.output, SyncReport).weights_sha256 if entry else None


@contextmanager
def matrix(directory: Path, model: Path, cells: Sequence[Cell]) -> Iterator[Matrix]:
    """Services with the hook in them, and a matrix for those cells."""
    plan = directory / "plan.json"
    # A checkpoint is due in every second iteration, so some iterations go without a kill.
    iterations = len(cells) + sum(cell.stage == "checkpoint" for cell in cells) + 1
    with up(directory / "cache", PYTHONPATH=str(HOOK), RLVR_KILL_PLAN=str(plan)) as running:
        yield Matrix(running, plan, tiny_training(directory, model), iterations)


def main() -> int:
    console = Console()
    table = Table("stage", "killed", "when", "ran again", "Retry", "updates", "responses", "weights", "s", box=None)
    with tempfile.TemporaryDirectory(prefix="kill-matrix-") as scratch:
        model = save_tiny_llama(Path(scratch) / "model", tokenizer_from=smollm2_directory(), seed=0)
        with matrix(Path(scratch), model, ALL) as killed:
            verdicts = []
            for cell in ALL:
                verdicts.append(verdict := killed.run(cell))
                console.print(f"{len(verdicts)}/{len(ALL)} {cell}: {'; '.join(verdict.faults) or 'passed'}")
    for verdict in verdicts:
        cell = verdict.cell
        table.add_row(
            *(cell.stage, cell.victim, cell.moment, ", ".join(verdict.again) or "–", str(verdict.retries)),
            *(f"{verdict.updates}/{verdict.iteration}", str(verdict.responses)),
            *("; ".join(verdict.faults) or "the same", f"{verdict.seconds:.0f}"),
        )
    console.print(table)
    passed = sum(verdict.passed for verdict in verdicts)
    console.print(f"kill matrix: {len(verdicts)} cells, {passed} passed", highlight=False)
    return 0 if passed == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
