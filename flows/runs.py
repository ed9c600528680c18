"""Runs as the flows open them: from a configuration, at their next iteration."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rlcore.changes import MODELS, Change, altered, changes, standing
from rlcore.compose import compose, dump, load, recompose
from rlcore.config import AlgorithmConfig, Config
from rlcore.iteration import Iteration
from rlcore.lineage import inherited_iterations, read_fork
from rlcore.ownership import owned
from rlcore.plan import READS, plan_iteration
from rlcore.retention import PRUNED_FILE, pruned_outputs
from rlcore.store import RunStore, iteration_path
from rlcore.tracking.history import forget_row, read_metrics
from rlcore.trainer.checkpoint import published

CONFIG_FILE = "config.yaml"


class RunConflict(ValueError):
    """A run cannot go on like that: it would alter what was done."""


def settings_of(config_name: str, overrides: Sequence[str]) -> Config:
    """The configuration that `open_run` takes; writes nothing.

    Args:
        config_name: of a file in configs/, or the address of a run's own config.yaml.
        overrides: `key=value`.

    Raises:
        ConfigError: the configuration is not valid.
        StoreError: there is no run of that address.
    """
    if (address := _run_address(config_name)) is None:
        return compose(config_name, overrides, _algorithm_so_far)
    own = load(RunStore(address).read_bytes(CONFIG_FILE).decode())
    return recompose(own, overrides, config_name) if overrides else own


def open_run(config_name: str, overrides: Sequence[str]) -> tuple[Config, RunStore]:
    """The run that a configuration describes; its directory is made where it is missing.

    Args:
        config_name, overrides: as `settings_of`.

    Raises:
        ConfigError, StoreError: as `settings_of`.
        RunConflict: the directory holds a run that other settings would alter; names the fields.
        RunBusy: another process works on the run, which other settings would change.
    """
    config = settings_of(config_name, overrides)
    store = RunStore(_run_address(config_name) or config.run_url)
    if _recorded(store) != config:
        with owned(store):
            if (before := _recorded(store)) is not None:
                _allow_changes(before, config, store)
            store.write_bytes(CONFIG_FILE, dump(config).encode())
    store.assign_run_id()
    return config, store


def _algorithm_so_far(config: Config) -> AlgorithmConfig | None:
    """The algorithm of the configuration's run, which was checked when the run began or was changed."""
    before = _recorded(RunStore(config.run_url))
    return before.algorithm if before else None


def _recorded(store: RunStore) -> Config | None:
    """The configuration of the run so far; None of a new one."""
    return load(store.read_bytes(CONFIG_FILE).decode()) if store.exists(CONFIG_FILE) else None


def _run_address(config_name: str) -> str | None:
    address = config_name.removesuffix(f"/{CONFIG_FILE}")
    return address if address != config_name else None


def _allow_changes(before: Config, now: Config, store: RunStore) -> None:
    """Have the run go on under another configuration, unless that would alter what stands of it.

    Raises:
        RunConflict: as `refuse_changes`.
    """
    changed = changes(before, now)
    refuse_changes(changed, before, store)
    if any(change.is_in(READS["evaluate"]) for change in changed) and not inherited_iterations(store):
        # As no update stands, the evaluation before training is done again, and logged anew.
        forget_row(store, 0)


def refuse_changes(changed: Sequence[Change], before: Config, store: RunStore) -> None:
    """
    Raises:
        RunConflict: a stage whose output is built on reads one of the fields; names the fields with both values, what
            would be altered, and what can be done.
    """
    if not changed:
        return
    entries, inherited = store.ledger(), inherited_iterations(store)
    stands = standing(entries, next_iteration(before, store), inherited)
    refused = [f"{change} would alter {what}" for change in changed if (what := altered(change, stands, before))]
    if inherited:
        refused += [f"{change} is not the model of its checkpoint" for change in changed if change.is_in(MODELS)]
    if refused:
        forkable = not any(change.is_in(MODELS) for change in changed)
        checkpoints = published(store.directory / "checkpoints") if forkable else []
        values = " ".join(f"{change.field}={_as_override(change.now)}" for change in changed)
        fork = f"fork it (`rlvr fork {store.url} --from {int(checkpoints[-1].name)} {values}`), " if checkpoints else ""
        raise RunConflict(
            f"{store.url} cannot go on under other settings ({'; '.join(refused)}): give the old ones, {fork}or start "
            "a new training (run=NAME)"
        )


@contextmanager
def open_iteration(config_name: str, overrides: Sequence[str], number: int | None) -> Iterator[Iteration]:
    """Iteration `number` of the run, or its next one; nobody else works on the run as long as it is open.

    Another process that works on it is waited for.

    Raises:
        RunConflict: the run has not come that far, or has the iteration no more, or from the run it was forked from.
        RunBusy: another process works on it.
    """
    config, store = open_run(config_name, overrides)
    with owned(store, wait=True):
        following = next_iteration(config, store)
        if number is not None and number > following:
            raise RunConflict(f"iteration {number} cannot be run yet: the next one of {store.url} is {following}")
        if number is not None:
            _refuse_closed(number, following, store)
        yield Iteration(config, store, following if number is None else number)


def _refuse_closed(number: int, following: int, store: RunStore) -> None:
    """
    Raises:
        RunConflict: the iteration's stages would be computed again, and what was built on them would not.
    """
    fork = read_fork(store)
    if fork is not None and number <= fork.iteration:
        raise RunConflict(
            f"iteration {number} of {store.url} is of {fork.url}, from which it was forked at {fork.iteration}: "
            f"it can be run again there; the next one here is {following}"
        )
    gone = [path for path, _ in pruned_outputs(store) if path.startswith(f"{iteration_path(number)}/")]
    if not all(map(store.exists, gone)):
        newest = max((int(path.name) for path in published(store.directory / "checkpoints")), default=None)
        fork_it = (
            f"; `rlvr fork {store.url} --from {newest} key=value` is another training from there" if newest else ""
        )
        raise RunConflict(
            f"iteration {number} of {store.url} was pruned ({PRUNED_FILE}) and cannot be run again: its batches would "
            f"be others than those that were trained on; the run goes on with iteration {following}{fork_it}"
        )


def _as_override(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def next_iteration(config: Config, store: RunStore) -> int:
    """The newest iteration if something of it is missing, a stage or its metrics; else the one after it."""
    entries = store.ledger()
    newest = max((entry.iteration for entry in entries), default=0)
    if newest == inherited_iterations(store):
        return newest + 1
    done = {entry.stage for entry in entries if entry.iteration == newest}
    logged = any(row["iteration"] == newest for row in read_metrics(store.directory))
    return newest + 1 if logged and done.issuperset(plan_iteration(config, newest).stages) else newest
