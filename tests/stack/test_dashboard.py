"""Retry in Prefect's dashboard, pressed in a real browser: the run goes on at the stage that failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.stack.dashboard import COMPLETED, FAILED, RUN, fail_and_retry
from tests.stack.pipeline import store_of, tiny_training, up, wait_until

FINISHED = ["sample", "generate", "reward", "advantage", "update", "sync"]


def test_retry_in_the_dashboard_goes_on_at_the_failed_stage(tmp_path: Path, tiny_llama: Path) -> None:
    workplace = tiny_training(tmp_path, tiny_llama)
    with up(tmp_path / "cache") as running:
        flow_run, before = fail_and_retry(running, workplace, tmp_path / "volume", pictures=tmp_path)

        def stages_in(attempt: int) -> dict[str, str]:
            """State of each stage's task run."""
            wanted = {"flow_runs": {"id": {"any_": [flow_run]}}}
            task_runs: list[dict[str, Any]] = running.ask("POST", "task_runs/filter", wanted)
            of_attempt = [task_run for task_run in task_runs if task_run["flow_run_run_count"] == attempt]
            return {task_run["name"].split("-")[0]: task_run["state"]["name"] for task_run in of_attempt}

        assert running.state_of(flow_run) == "COMPLETED"
        first, second = dict.fromkeys(FINISHED, "Completed"), dict.fromkeys(FINISHED, "Cached")
        # The server records the states of tasks some seconds late.
        wait_until(lambda: stages_in(1) == {**first, "checkpoint": "Failed"}, "the first attempt failed", 20)
        wait_until(lambda: stages_in(2) == {**second, "checkpoint": "Completed"}, "finished stages are kept", 20)

    ledger = store_of(workplace, RUN).ledger()
    assert [entry.stage for entry in before] == FINISHED
    assert ledger[: len(before)] == before, "what was finished was computed again"
    assert [entry.stage for entry in ledger[len(before) :]] == ["checkpoint"]
    assert (tmp_path / "volume" / "000001" / "MANIFEST").is_file()
    assert (tmp_path / FAILED).read_bytes() != (tmp_path / COMPLETED).read_bytes()
