"""What a Retry in the dashboard costs, on warm engines: from the press to the failed stage, and after it.

    python -m benchmarks.retry [--quick]

`rlvr up` on free ports, with a tiny random model. In some iterations of a run the stage `advantage` cannot write its
output, as a directory is in the place of the file. The directory is removed, and Retry is pressed by the call that the
dashboard makes. What follows the failed stage is compared with the same stages of iterations that nothing happened to.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rlcore.pretrained import smollm2_directory
from rlcore.store import LedgerEntry, RunStore, iteration_path
from tests.stack.chaos.retrying import GONE_SECONDS, processes_of
from tests.stack.conftest import save_tiny_llama
from tests.stack.pipeline import Up, store_of, tiny_training, up, wait_until

AIM_SECONDS = 2.0
FAILED_STAGE, ITS_FILE = "advantage", "train.parquet"
ENDED = ("COMPLETED", "FAILED", "CRASHED")


@dataclass(frozen=True)
class Retry:
    """One Retry; seconds."""

    poll: float
    """From the press until the Prefect worker has taken the flow run."""
    process: float
    """From there until the flow begins: a process with its imports."""
    finished_stages: float
    """From there until the failed stage computes."""
    stage: float
    rest: float
    """From the end of the failed stage to the end of the flow run."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one Retry")
    count = 1 if parser.parse_args().quick else 5
    with tempfile.TemporaryDirectory(prefix="retry-") as scratch:
        directory = Path(scratch)
        model = save_tiny_llama(directory / "model", tokenizer_from=smollm2_directory(), seed=0)
        settings = ["eval_steps=0", "save_steps=0", "tracking.wandb=off", "run=retry", "iterations=100"]
        overrides = [*tiny_training(directory, model), *settings]
        store = store_of(overrides, "retry")
        with up(directory / "cache") as running:
            iterate(running, overrides)
            plain, retries = [], []
            for number in range(2, 2 + 2 * count, 2):
                plain.append(rest_of(running, store, iterate(running, overrides), number))
                retries.append(fail_and_retry(running, store, overrides, number + 1))
    report(retries, statistics.median(plain))


def iterate(running: Up, overrides: list[str], wanted: str = "COMPLETED") -> str:
    """Run the next iteration to its end; the flow run's id."""
    flow_run = running.start_deployment(overrides)
    wait_until(lambda: running.state_of(flow_run) in ENDED, "the iteration has ended")
    assert running.state_of(flow_run) == wanted, running.state_of(flow_run)
    return flow_run


def fail_and_retry(running: Up, store: RunStore, overrides: list[str], number: int) -> Retry:
    """The run's next iteration, `number`, with the fault, which is then removed."""
    obstacle = store.directory / iteration_path(number) / ITS_FILE
    obstacle.mkdir(parents=True)
    flow_run = iterate(running, overrides, wanted="FAILED")
    wait_until(lambda: not processes_of(flow_run), "the process of the flow run has ended")
    time.sleep(GONE_SECONDS)
    shutil.rmtree(obstacle)
    pressed = time.time()
    running.press_retry(flow_run)
    wait_until(lambda: running.state_of(flow_run) == "COMPLETED", "the retry has completed")
    times = dict(state for state in states(running, flow_run) if state[1] >= pressed)
    stage = entry(store, number)
    return Retry(
        poll=times["PENDING"] - pressed,
        process=times["RUNNING"] - times["PENDING"],
        finished_stages=stage.started_at - times["RUNNING"],
        stage=stage.finished_at - stage.started_at,
        rest=times["COMPLETED"] - stage.finished_at,
    )


def rest_of(running: Up, store: RunStore, flow_run: str, number: int) -> float:
    """Seconds from the end of the stage to the end of the flow run."""
    return dict(states(running, flow_run))["COMPLETED"] - entry(store, number).finished_at


def entry(store: RunStore, number: int) -> LedgerEntry:
    found = store.find(number, FAILED_STAGE)
    assert found is not None
    return found


def states(running: Up, flow_run: str) -> list[tuple[str, float]]:
    """The states of a flow run with their Unix times, oldest first."""
    answer = running.ask("GET", f"flow_run_states/?flow_run_id={flow_run}")
    found = [
        (state["type"], datetime.fromisoformat(state["timestamp"]).astimezone(UTC).timestamp()) for state in answer
    ]
    return sorted(found, key=lambda state: state[1])


def report(retries: list[Retry], plain_rest: float) -> None:
    """Print the table and the last line."""

    def median(part: str) -> float:
        return statistics.median(getattr(retry, part) for retry in retries)

    table = Table("part", "seconds", title=f"medians of {len(retries)} retries")
    table.add_row("until the Prefect worker takes it", f"{median('poll'):.2f}")
    table.add_row("process and imports", f"{median('process'):.2f}")
    table.add_row("Ray, and the finished stages", f"{median('finished_stages'):.2f}")
    table.add_row(f"the failed stage, {FAILED_STAGE}", f"{median('stage'):.2f}")
    table.add_row("the rest of the iteration", f"{median('rest'):.2f}")
    table.add_row("the same where nothing happened", f"{plain_rest:.2f}")
    Console().print(table)
    before = statistics.median(retry.poll + retry.process + retry.finished_stages for retry in retries)
    after = median("rest") - plain_rest
    print(
        f"a retry costs the failed stage and {before:.2f} s before it, {after:+.2f} s after it "
        f"(aim ≤ {AIM_SECONDS:.0f} s; load average {os.getloadavg()[0]:.1f})"
    )


if __name__ == "__main__":
    main()
