"""Which iteration a run is at, and under which settings it may be continued."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from flows.runs import RunConflict, next_iteration, open_iteration, open_run
from rlcore.compose import compose
from rlcore.config import Config
from rlcore.config_errors import ConfigError
from rlcore.ownership import RunBusy
from rlcore.plan import INPUTS, READS, plan_iteration
from rlcore.retention import Pruning
from rlcore.store import RunStore
from rlcore.tracking.history import read_metrics
from rlcore.trainer.checkpoint import publish
from tests.entries import ledger_entry


@dataclass(frozen=True)
class Run:
    overrides: list[str]
    store: RunStore


Finished = Callable[..., Run]


@pytest.fixture
def finished(tmp_path: Path) -> Finished:
    """A run of configs/arithmetic.yaml with so many iterations done."""

    def make(iterations: int, *overrides: str) -> Run:
        every = [f"runs_dir={tmp_path}", *overrides]
        config, store = open_run("arithmetic", every)
        for iteration in range(1, iterations + 1):
            finish(store, iteration, *plan_iteration(config, iteration).stages)
            store.append_line("metrics.jsonl", json.dumps({"iteration": iteration}))
        return Run(every, store)

    return make


def publish_checkpoint(store: RunStore, version: int) -> None:
    staging = store.directory / "checkpoints" / ".saving"
    staging.mkdir(parents=True)
    publish(staging, store.directory / "checkpoints" / f"{version:06d}")


@contextmanager
def other_owner(store: RunStore) -> Iterator[None]:
    """A living process that owns the run."""
    code = "import sys; from rlcore.ownership import owned; from rlcore.store import RunStore\n"
    code += "with owned(RunStore(sys.argv[1])): print('owned', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, store.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None and process.stdout.readline() == "owned\n"
        yield
        assert process.stdin is not None
        process.stdin.close()


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


FREE = {"run", "runs_dir", "iterations", "eval_steps", "save_steps", "save_total_limit", "save_best"}
FREE |= {"deadlines", "hardware", "sync", "tracking"}


def test_every_stage_says_which_fields_it_reads_and_the_others_decide_no_number() -> None:
    config = compose("arithmetic", [])
    assert READS.keys() == INPUTS.keys()
    for fields in READS.values():
        config.digest(*fields)
    read = {field.split(".")[0] for fields in READS.values() for field in fields}
    assert set(Config.model_fields) - read == FREE


def test_what_no_stage_reads_may_change_at_any_time(finished: Finished) -> None:
    run = finished(2)
    free = ["iterations=50", "eval_steps=1", "save_best=null", "tracking.wandb=off", "sync.probe_tolerance=0.5"]
    free += ["deadlines.stall_seconds=60"]
    layout = ["trainer.world_size=4", "trainer.tensor_model_parallel_size=2", "trainer.recompute=full"]
    again, _ = open_run("arithmetic", [*run.overrides, *free, *layout, "hardware.max_num_seqs=3"])
    assert again.iterations == 50 and again.trainer.data_parallel_size == 2


def test_what_a_finished_iteration_read_may_not_change(finished: Finished) -> None:
    run = finished(2)
    with pytest.raises(RunConflict) as refused:
        open_run("arithmetic", [*run.overrides, "trainer.learning_rate=1e-3", "rollout.rollout_batch_size=3"])
    said = str(refused.value)
    assert "trainer.learning_rate: 2e-05 → 0.001 would alter update of iterations 1–2" in said
    assert "rollout.rollout_batch_size: 16 → 3 would alter sample of iterations 1–2" in said
    assert "give the old ones, or start a new training (run=NAME)" in said
    assert open_run("arithmetic", run.overrides)[0].trainer.learning_rate == 2e-5


def test_a_refusal_names_the_fork_that_does_what_was_wanted(finished: Finished) -> None:
    run = finished(2)
    publish_checkpoint(run.store, 2)
    with pytest.raises(RunConflict, match=r"`rlvr fork .*/arithmetic --from 2 algorithm\.dual_clip=3\.0`"):
        open_run("arithmetic", [*run.overrides, "algorithm.dual_clip=3.0"])
    with pytest.raises(RunConflict) as refused:
        open_run("arithmetic", [*run.overrides, "model.path=/other"])
    assert "rlvr fork" not in str(refused.value), "no checkpoint is of another model"


def test_before_the_first_update_anything_may_change_and_the_evaluation_is_logged_anew(finished: Finished) -> None:
    run = finished(0)
    finish(run.store, 0, "evaluate")
    run.store.append_line("metrics.jsonl", '{"iteration": 0, "eval/accuracy": 0.5}')
    finish(run.store, 1, "sample", "generate", "reward", "advantage")
    open_run("arithmetic", [*run.overrides, "trainer.learning_rate=1e-3"])
    assert [row["iteration"] for row in read_metrics(run.store.directory)] == [0], "nothing of it is read by evaluate"
    changed = [*run.overrides, "trainer.learning_rate=1e-3", "rewards.arithmetic.grader=format"]
    assert open_run("arithmetic", changed)[0].rewards["arithmetic"].grader == "format"
    assert read_metrics(run.store.directory) == []


def test_an_update_fixes_the_stages_up_to_it_also_in_the_iteration_under_way(finished: Finished) -> None:
    run = finished(0)
    finish(run.store, 0, "evaluate")
    finish(run.store, 1, "sample", "generate", "reward", "advantage", "update", "sync")
    for override, stage in (
        ("seed=1", "sample"),
        ("rollout.temperature=0.5", "generate"),
        ("rewards.arithmetic.grader=format", "reward"),
        ("trainer.learning_rate=1e-3", "update"),
    ):
        with pytest.raises(RunConflict, match=f"would alter {stage} of iteration 1"):
            open_run("arithmetic", [*run.overrides, override])
    open_run("arithmetic", [*run.overrides, "trainer.max_tokens_per_micro_batch=64", "sync.probe_tolerance=0.5"])


def test_a_run_whose_rate_falls_to_its_end_is_not_continued_for_longer_without_saying_how(finished: Finished) -> None:
    run = finished(1, "trainer.lr_scheduler_type=cosine")
    with pytest.raises(RunConflict, match=r"trainer\.lr_decay_steps: 30 → 50"):
        open_run("arithmetic", [*run.overrides, "iterations=50"])
    longer, _ = open_run("arithmetic", [*run.overrides, "iterations=50", "trainer.lr_decay_steps=30"])
    assert longer.iterations == 50


def test_a_pruned_iteration_is_not_run_again(finished: Finished) -> None:
    run = finished(3)
    publish_checkpoint(run.store, 2)
    record = Pruning(pruned_at=1.0, outputs={"iterations/000001/prompts.parquet": "0"}, checkpoints=[])
    run.store.append_line("pruned.jsonl", record.model_dump_json())
    with pytest.raises(RunConflict, match=r"iteration 1 .* was pruned \(pruned\.jsonl\).* iteration 4; .*--from 2"):
        open_iteration("arithmetic", run.overrides, 1).__enter__()
    for number in (2, None):
        with open_iteration("arithmetic", run.overrides, number):
            pass


def test_a_pruning_that_was_interrupted_closes_no_iteration_that_is_whole(finished: Finished) -> None:
    run = finished(2)
    run.store.write_bytes("iterations/000001/prompts.parquet", b"still there")
    record = Pruning(pruned_at=1.0, outputs={"iterations/000001/prompts.parquet": "0"}, checkpoints=[])
    run.store.append_line("pruned.jsonl", record.model_dump_json())
    with open_iteration("arithmetic", run.overrides, 1) as iteration:
        assert iteration.number == 1


def test_a_run_is_not_changed_while_another_process_works_on_it(finished: Finished) -> None:
    run = finished(0)
    before = run.store.read_bytes("config.yaml")
    with other_owner(run.store), pytest.raises(RunBusy):
        open_run("arithmetic", [*run.overrides, "iterations=50"])
    assert run.store.read_bytes("config.yaml") == before
    with other_owner(run.store):
        assert open_run("arithmetic", run.overrides)[1].url == run.store.url, "nothing changes"


def test_a_runs_own_configuration_counts_whatever_became_of_the_file_it_was_made_from(tmp_path: Path) -> None:
    _, store = open_run("arithmetic", [f"runs_dir={tmp_path}", "rollout.rollout_batch_size=7"])
    config, same = open_run(f"{store.url}/config.yaml", [])
    assert config.rollout.rollout_batch_size == 7
    assert same.url == store.url


def test_a_runs_own_configuration_takes_overrides_as_any_other(finished: Finished) -> None:
    run = finished(1)
    address = f"{run.store.url}/config.yaml"
    assert open_run(address, ["iterations=50"])[0].iterations == 50
    assert open_run(address, [])[0].iterations == 50
    with pytest.raises(RunConflict, match="seed: 0 → 1 would alter sample of iteration 1"):
        open_run(address, ["seed=1"])
    with pytest.raises(ConfigError, match="did you mean iterations"):
        open_run(address, ["iteration=3"])


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


def test_going_on_with_a_run_takes_no_torch(finished: Finished) -> None:
    run = finished(1)
    code = f"import sys; from flows.runs import open_run; open_run('arithmetic', {run.overrides}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "torch" not in done.stdout.split()


def test_another_algorithm_on_the_way_is_checked_as_at_the_start(finished: Finished) -> None:
    run = finished(0)
    with pytest.raises(ConfigError, match=r"algorithm\.policy_loss"):
        open_run("arithmetic", [*run.overrides, "algorithm.policy_loss=nonsense"])
