"""Which iteration a run is at, and under which settings it may be continued."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flows.runs import RunConflict, next_iteration, open_iteration, open_run
from rlcore.compose import compose
from rlcore.plan import plan_iteration
from rlcore.store import RunStore
from tests.entries import ledger_entry


def finish(store: RunStore, iteration: int, *stages: str) -> None:
    for name in stages:
        store.record(ledger_entry(iteration, name))


def test_a_run_starts_at_one_also_after_its_first_evaluation(tmp_path: Path) -> None:
    config, store = compose("arithmetic", []), RunStore(str(tmp_path))
    assert next_iteration(config, store) == 1
    finish(store, 0, "evaluate")
    assert next_iteration(config, store) == 1


def test_an_iteration_with_a_stage_or_its_metrics_missing_is_the_next_one(tmp_path: Path) -> None:
    config, store = compose("arithmetic", []), RunStore(str(tmp_path))
    finish(store, 1, *plan_iteration(config, 1).stages)
    assert next_iteration(config, store) == 1
    store.append_line("metrics.jsonl", '{"iteration": 1}')
    assert next_iteration(config, store) == 2
    finish(store, 2, "sample", "generate")
    assert next_iteration(config, store) == 2


def test_opening_a_run_writes_the_resolved_configuration(tmp_path: Path) -> None:
    _, store = open_run("arithmetic", [f"runs_dir={tmp_path}"])
    assert "rollout_batch_size: 16" in store.read_bytes("config.yaml").decode()
    assert store.url == str(tmp_path / "arithmetic")


def test_a_run_may_be_continued_for_longer_but_not_under_other_numbers(tmp_path: Path) -> None:
    here = f"runs_dir={tmp_path}"
    open_run("arithmetic", [here])
    longer, _ = open_run("arithmetic", [here, "iterations=50", "tracking.wandb=off"])
    assert longer.iterations == 50
    with pytest.raises(RunConflict, match=r"trainer\.learning_rate: 2e-05 → 0\.001.*run=NAME"):
        open_run("arithmetic", [here, "trainer.learning_rate=1e-3"])
    assert open_run("arithmetic", [here])[0].trainer.learning_rate == 2e-5


def test_a_run_may_be_continued_in_another_layout(tmp_path: Path) -> None:
    here = f"runs_dir={tmp_path}"
    open_run("arithmetic", [here])
    divided = ["trainer.world_size=4", "trainer.tensor_model_parallel_size=2", "trainer.recompute=full"]
    assert open_run("arithmetic", [here, *divided])[0].trainer.data_parallel_size == 2


def test_a_run_whose_rate_falls_to_its_end_is_not_continued_for_longer_without_saying_how(tmp_path: Path) -> None:
    here = [f"runs_dir={tmp_path}", "trainer.lr_scheduler_type=cosine"]
    open_run("arithmetic", here)
    with pytest.raises(RunConflict, match=r"trainer\.lr_decay_steps: 30 → 50"):
        open_run("arithmetic", [*here, "iterations=50"])
    longer, _ = open_run("arithmetic", [*here, "iterations=50", "trainer.lr_decay_steps=30"])
    assert longer.iterations == 50


def test_a_runs_own_configuration_counts_whatever_became_of_the_file_it_was_made_from(tmp_path: Path) -> None:
    _, store = open_run("arithmetic", [f"runs_dir={tmp_path}", "rollout.rollout_batch_size=7"])
    config, same = open_run(f"{store.url}/config.yaml", [])
    assert config.rollout.rollout_batch_size == 7
    assert same.url == store.url


def test_an_iteration_can_be_named_or_left_to_the_run_but_not_ahead_of_it(tmp_path: Path) -> None:
    here = [f"runs_dir={tmp_path}"]
    for asked, number in ((None, 1), (0, 0)):
        with open_iteration("arithmetic", here, asked) as iteration:
            assert iteration.number == number
    with pytest.raises(RunConflict, match=r"iteration 7 cannot be run yet: the next one of .* is 1"):
        open_iteration("arithmetic", here, 7).__enter__()


def test_a_run_made_anew_under_an_old_name_has_another_id(tmp_path: Path) -> None:
    _, store = open_run("arithmetic", [f"runs_dir={tmp_path}"])
    before = store.run_id
    shutil.rmtree(store.directory)
    _, again = open_run("arithmetic", [f"runs_dir={tmp_path}"])
    assert store.url == again.url and again.run_id != before
