"""A new run from an iteration of another: its checkpoint, its journal, and other settings from there on."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rlcore.changes import MODELS, Change, changes
from rlcore.cluster.checkpoints import state_directory
from rlcore.cluster.trainer import CRITIC
from rlcore.compose import dump, load, recompose
from rlcore.config import Config
from rlcore.leftovers import ABANDONED_AFTER, last_touched
from rlcore.lineage import FORK_FILE, Fork, ForkRefused
from rlcore.retention import PRUNED_FILE, Pruning, newest_entries, pruned_outputs
from rlcore.rollout.journal import copy_state
from rlcore.store import BatchRef, RunStore
from rlcore.tracking.history import METRICS_FILE, read_metrics
from rlcore.trainer.checkpoint import published, sync_directory, verify

UNFINISHED = ".{name}.fork-"
"""How the name of a fork's directory starts until it is whole."""


def fork_run(origin: RunStore, iteration: int, overrides: Sequence[str], name: str | None = None) -> RunStore:
    """Make a run that goes on from an iteration of `origin` under other settings. `origin` may be training meanwhile.

    It lies beside `origin`, or in the runs_dir that the overrides name, and shares no file with it. It is there whole
    or not at all.

    Args:
        iteration: one with a checkpoint.
        overrides: as `rlcore.compose.compose`.
        name: of the new run. None: RUN-from-ITERATION.

    Raises:
        ForkRefused: the iteration is not finished or has no checkpoint, a stage output is damaged, there is a run of
            that name, or the checkpoint does not fit the settings.
        CheckpointDamaged: it is not what was saved.
        ConfigError: an override is not valid.
        StoreError: a run is not on a file system, or a file that is read is missing.
    """
    before = load(origin.read_bytes("config.yaml").decode())
    shown_as = f"{origin.url}/config.yaml"
    config = recompose(before, [*overrides, f"run={name or f'{before.run}-from-{iteration}'}"], shown_as)
    checkpoint = _checkpoint_of(origin, iteration)
    changed = [change for change in changes(before, config) if change.field != "run"]
    _refuse_misfits(changed, config, checkpoint)
    if config.iterations <= iteration:
        raise ForkRefused(
            f"iterations is {config.iterations}: from {iteration} nothing is left to train; add iterations=N"
        )
    runs = origin.directory.parent if config.runs_dir == before.runs_dir else RunStore(config.runs_dir).directory
    target = runs / config.run
    if target.exists():
        raise ForkRefused(f"{target} is there already: give the fork another name (--run NAME)")
    runs.mkdir(parents=True, exist_ok=True)
    _delete_abandoned(target)
    staging = Path(tempfile.mkdtemp(prefix=UNFINISHED.format(name=target.name), dir=runs))
    try:
        staging.chmod(0o755)
        verify(checkpoint)
        copied = staging / "checkpoints" / checkpoint.name
        shutil.copytree(checkpoint, copied)
        verify(copied)
        ledger = _copy_past(origin, iteration, staging)
        record = Fork(
            url=origin.url,
            run_id=origin.run_id,
            iteration=iteration,
            changed={change.field: (change.before, change.now) for change in changed},
            ledger_lines=ledger.count(b"\n"),
            ledger_sha256=hashlib.sha256(ledger).hexdigest(),
            forked_at=time.time(),
        )
        (staging / FORK_FILE).write_text(record.model_dump_json(indent=1))
        RunStore(str(staging)).assign_run_id()
        (staging / "config.yaml").write_text(dump(config))
        sync_directory(staging)
        # Over a run that somebody made meanwhile it fails.
        staging.rename(target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return RunStore(str(target))


def _checkpoint_of(origin: RunStore, iteration: int) -> Path:
    checkpoints = {int(path.name): path for path in published(origin.directory / "checkpoints")}
    if iteration not in checkpoints:
        there = ", ".join(map(str, checkpoints)) or "none"
        raise ForkRefused(f"{origin.url} has no checkpoint of iteration {iteration}; there are: {there}")
    if not any(row["iteration"] == iteration for row in read_metrics(origin.directory)):
        raise ForkRefused(f"iteration {iteration} of {origin.url} is not finished: go on with the run first")
    return checkpoints[iteration]


def _refuse_misfits(changed: Sequence[Change], config: Config, checkpoint: Path) -> None:
    """Settings under which the checkpoint is not what the trainer or the critic looks for."""
    if others := [str(change) for change in changed if change.is_in(MODELS)]:
        raise ForkRefused(f"the checkpoint is of another model ({'; '.join(others)}): train it under a run of its own")
    if config.algorithm.uses_critic and not state_directory(checkpoint, CRITIC).is_dir():
        estimator = config.algorithm.adv_estimator
        raise ForkRefused(
            f"algorithm.adv_estimator={estimator} needs a critic, and {checkpoint} has none: the run had no critic"
        )


def _copy_past(origin: RunStore, iteration: int, staging: Path) -> bytes:
    """Copy the ledger, the stage outputs, the metrics and the scheduler's state up to an iteration; the copied ledger.

    What was pruned stays away, and is recorded as pruned.
    """
    entries = [entry for entry in newest_entries(origin.ledger()).values() if entry.iteration <= iteration]
    pruned = pruned_outputs(origin)
    gone = {}
    for entry in entries:
        ref = entry.output
        if (ref.path, ref.sha256) in pruned and not origin.exists(ref.path):
            gone[ref.path] = ref.sha256
        else:
            _copy_output(origin, ref, staging)
    ledger = b"".join(entry.model_dump_json().encode() + b"\n" for entry in entries)
    (staging / "ledger.jsonl").write_bytes(ledger)
    if gone:
        record = Pruning(pruned_at=time.time(), outputs=gone, checkpoints=[])
        (staging / PRUNED_FILE).write_text(record.model_dump_json() + "\n")
    copy_state(origin, RunStore(str(staging)), iteration + 1)
    rows = [row for row in read_metrics(origin.directory) if row["iteration"] <= iteration]
    (staging / METRICS_FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ledger


def _copy_output(origin: RunStore, ref: BatchRef, staging: Path) -> None:
    content = origin.read_bytes(ref.path)
    digest = hashlib.sha256(content).hexdigest()
    if digest != ref.sha256:
        raise ForkRefused(
            f"{origin.url}/{ref.path} is damaged (sha256 {digest[:12]}…, recorded {ref.sha256[:12]}…): `rlvr verify` "
            "says what brings it back"
        )
    (staging / ref.path).parent.mkdir(parents=True, exist_ok=True)
    (staging / ref.path).write_bytes(content)


def _delete_abandoned(target: Path) -> None:
    """What an attempt at the same fork left that was killed."""
    for path in target.parent.glob(f"{UNFINISHED.format(name=target.name)}*"):
        if time.time() - last_touched(path) > ABANDONED_AFTER:
            shutil.rmtree(path)
