"""A fork has its past whole and of its own, goes on after it, and is there completely or not at all."""

from __future__ import annotations

import io
import os
import shutil
import time
from pathlib import Path

import pytest
from rich.console import Console

from flows.runs import RunConflict, next_iteration, open_iteration, open_run
from rlcore.compose import compose, load
from rlcore.config_errors import ConfigError
from rlcore.forking import fork_run
from rlcore.iteration import Iteration
from rlcore.lineage import Fork, ForkRefused, read_fork, refuse_before_fork
from rlcore.pruning import plan_pruning, prune
from rlcore.recorded_updates import plan_replay
from rlcore.store import RunStore, StoreError
from rlcore.tracking.history import read_metrics
from rlcore.trainer.checkpoint import CheckpointDamaged
from rlcore.verification.findings import Verification
from rlcore.verification.run import verify_run
from tests.recorded_run import RecordedRun


@pytest.fixture
def origin(tmp_path: Path) -> RunStore:
    """Four iterations, saved after 2 and 4."""
    recorded = RecordedRun(tmp_path / "arithmetic", 4)
    recorded.record_all({0: 0.1, 2: 0.2, 4: 0.3})
    return recorded.store


def verified(store: RunStore) -> Verification:
    return verify_run(store, Console(file=io.StringIO()))


def files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def test_a_fork_has_the_iterations_up_to_there_and_goes_on_with_the_next(origin: RunStore) -> None:
    made = fork_run(origin, 2, ["trainer.learning_rate=1e-3"])
    assert made.directory == origin.directory.parent / "arithmetic-from-2"
    config = load(made.directory / "config.yaml")
    assert (config.run, config.trainer.learning_rate) == ("arithmetic-from-2", 1e-3)
    assert made.ledger() == [entry for entry in origin.ledger() if entry.iteration <= 2]
    assert [row["iteration"] for row in read_metrics(made.directory)] == [0, 1, 2]
    assert os.listdir(made.directory / "checkpoints") == ["000002"]
    assert next_iteration(config, made) == 3
    with open_iteration(f"{made.url}/config.yaml", [], None) as iteration:
        assert iteration.number == 3
        assert iteration.previous_state is not None and made.is_intact(iteration.previous_state)
    assert verified(made).wrong == verified(origin).wrong == []


def test_the_updates_that_a_fork_came_with_are_replayed_where_they_were_made(origin: RunStore) -> None:
    made = fork_run(origin, 2, ["trainer.learning_rate=1e-3"])
    with pytest.raises(StoreError, match=f"updates up to 2 of {made.url} are of {origin.url}: replay them there"):
        plan_replay(made, 2, 2)


def test_a_fork_says_where_it_is_from_and_has_an_id_of_its_own(origin: RunStore) -> None:
    made = fork_run(origin, 4, ["iterations=9", "seed=7"], name="other")
    fork = read_fork(made)
    assert fork is not None and (fork.url, fork.run_id, fork.iteration) == (origin.url, origin.run_id, 4)
    assert fork.changed == {"iterations": (4, 9), "seed": (0, 7)}
    assert made.directory.name == "other" and made.run_id != origin.run_id


def test_a_fork_outlives_the_run_it_was_made_from(origin: RunStore) -> None:
    made = fork_run(origin, 2, [])
    assert all(path.stat().st_nlink == 1 for path in made.directory.rglob("*") if path.is_file())
    shutil.rmtree(origin.directory)
    assert verified(made).wrong == []


def test_a_fork_with_other_stages_does_not_do_its_past_again(origin: RunStore) -> None:
    overrides = ["algorithm=grpo", "algorithm.old_logprobs=recompute", "eval_steps=1"]
    made = fork_run(origin, 2, overrides)
    config = load(made.directory / "config.yaml")
    assert config.algorithm.target_kl is None, "a group replaces its section whole"
    assert next_iteration(config, made) == 3
    update = origin.find(3, "update")
    assert update is not None
    made.record(update)
    gaps = [finding.where for finding in verified(made).wrong if "has no line of" in finding.what]
    assert gaps == [], "the past is held against the settings of the fork"
    for number in (0, 2):
        with pytest.raises(
            RunConflict, match=rf"iteration {number} of .* is of .*arithmetic, from which it was forked"
        ):
            open_iteration(f"{made.url}/config.yaml", [], number).__enter__()


def test_a_pruned_run_can_be_forked_and_what_was_pruned_is_known(origin: RunStore) -> None:
    prune(origin, plan_pruning(origin))
    made = fork_run(origin, 4, ["iterations=9"])
    assert verified(made).wrong == []
    assert verified(made).pruned == verified(origin).pruned > 0


def test_a_fork_can_be_forked(origin: RunStore) -> None:
    first = fork_run(origin, 2, ["seed=1"])
    second = fork_run(first, 2, ["seed=2"], name="second")
    fork = read_fork(second)
    assert fork is not None and fork.run_id == first.run_id
    assert verified(second).wrong == []


@pytest.mark.parametrize(
    "iteration, overrides, name, says",
    [
        (3, [], None, r"no checkpoint of iteration 3; there are: 2, 4"),
        (2, ["model.path=/other"], None, r"model\.path: .* → '/other'"),
        (2, ["model.dtype=bfloat16"], None, r"model\.dtype: 'float32' → 'bfloat16'"),
        (2, ["critic.path=/other"], None, r"critic\.path: None → '/other'"),
        (2, ["algorithm=ppo"], None, r"algorithm\.adv_estimator=gae needs a critic"),
        (4, [], None, r"iterations is 4: from 4 nothing is left to train"),
        (2, [], "arithmetic", r"arithmetic is there already: .*--run NAME"),
    ],
)
def test_a_fork_that_cannot_go_on_is_refused(
    origin: RunStore, iteration: int, overrides: list[str], name: str | None, says: str
) -> None:
    before = origin.read_bytes("config.yaml").decode()
    origin.write_bytes("config.yaml", before.replace("dtype: bfloat16", "dtype: float32").encode())
    there = files(origin.directory.parent)
    with pytest.raises(ForkRefused, match=says):
        fork_run(origin, iteration, overrides, name)
    assert files(origin.directory.parent) == there


def test_an_unknown_key_is_refused_as_everywhere(origin: RunStore) -> None:
    with pytest.raises(ConfigError, match=r"did you mean trainer\.learning_rate"):
        fork_run(origin, 2, ["trainer.learning_rat=1"])


def test_an_iteration_that_is_not_finished_is_refused(tmp_path: Path) -> None:
    recorded = RecordedRun(tmp_path / "run", 4)
    for iteration in (1, 2):
        recorded.record_iteration(iteration)
    with pytest.raises(ForkRefused, match=r"iteration 2 of .* is not finished"):
        fork_run(recorded.store, 2, [])


@pytest.mark.parametrize("damage", ["checkpoints/000002/megatron/weights", "iterations/000001/rollouts.parquet"])
def test_a_damaged_file_is_named_and_no_half_run_stays(origin: RunStore, damage: str) -> None:
    (origin.directory / damage).write_bytes(b"other")
    there = files(origin.directory.parent)
    with pytest.raises((CheckpointDamaged, ForkRefused), match=damage):
        fork_run(origin, 2, [])
    assert files(origin.directory.parent) == there


def test_what_a_killed_attempt_left_goes_with_the_next_unless_it_may_be_under_way(origin: RunStore) -> None:
    runs = origin.directory.parent
    old, new = runs / ".arithmetic-from-2.fork-old", runs / ".arithmetic-from-2.fork-new"
    for path in (old, new):
        path.mkdir()
    os.utime(old, (time.time() - 3600,) * 2)
    fork_run(origin, 2, [])
    assert not old.exists() and new.exists()


def test_verify_finds_a_past_that_is_not_as_it_was_forked(origin: RunStore) -> None:
    made = fork_run(origin, 2, [])
    lines = made.read_bytes("ledger.jsonl").splitlines(keepends=True)
    made.write_bytes("ledger.jsonl", b"".join(lines[:3] + lines[4:]))
    assert [finding.where for finding in verified(made).wrong if finding.group == "fork"] == ["fork.json"]
    made.write_bytes("ledger.jsonl", b"".join(lines))
    made.write_bytes("fork.json", b"{}")
    (finding,) = verified(made).wrong
    assert finding.group == "fork" and "does not say where the run was forked" in finding.what


def test_verify_does_not_advise_to_replay_the_past_of_a_fork(origin: RunStore) -> None:
    made = fork_run(origin, 2, [])
    (made.directory / "checkpoints/000002/megatron/weights").write_bytes(b"other")
    (finding,) = verified(made).wrong
    assert "fork the run again" in finding.advice


def test_no_update_of_the_past_is_applied_in_a_fork(origin: RunStore) -> None:
    made = fork_run(origin, 2, [])
    refuse_before_fork(made, 2)
    with pytest.raises(StoreError, match="no good checkpoint of it or of a later one"):
        refuse_before_fork(made, 0)
    refuse_before_fork(origin, 0)


def test_a_fork_that_is_the_first_to_keep_a_state_starts_without_one(tmp_path: Path) -> None:
    store = RunStore(str(tmp_path))
    record = Fork(url="there", run_id="x", iteration=2, changed={}, ledger_lines=0, ledger_sha256="", forked_at=1.0)
    store.write_bytes("fork.json", record.model_dump_json().encode())
    config = compose("arithmetic", ["algorithm.shaping.norm_mean_type=running"])
    assert Iteration(config, store, 3).previous_state is None
    with pytest.raises(StoreError, match="statistics of iteration 3"):
        _ = Iteration(config, store, 4).previous_state


def test_a_fork_may_be_changed_until_it_has_an_update_of_its_own_but_not_its_model(origin: RunStore) -> None:
    made = fork_run(origin, 2, [])
    address = f"{made.url}/config.yaml"
    assert open_run(address, ["rollout.temperature=0.5"])[0].rollout.temperature == 0.5
    with pytest.raises(RunConflict, match=r"model\.path: .* is not the model of its checkpoint"):
        open_run(address, ["model.path=/other"])
    update = origin.find(3, "update")
    assert update is not None
    made.record(update)
    with pytest.raises(RunConflict, match=r"temperature: 0\.5 → 0\.7 would alter update of iteration 3"):
        open_run(address, ["rollout.temperature=0.7"])
    assert [row["iteration"] for row in read_metrics(made.directory)] == [0, 1, 2]
