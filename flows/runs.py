"""Runs as the flows open them: from a configuration, at their next iteration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rlcore.compose import compose, dump, load
from rlcore.config import Config
from rlcore.iteration import Iteration
from rlcore.ownership import owned
from rlcore.plan import plan_iteration
from rlcore.store import RunStore
from rlcore.tracking.history import read_metrics
from rlcore.trainer.layout import Layout

CONFIG_FILE = "config.yaml"

MAY_CHANGE = {
    "iterations",
    "eval_steps",
    "save_steps",
    "save_total_limit",
    "save_best",
    "hardware",
    "sync",
    "tracking",
    "runs_dir",
    *(f"trainer.{name}" for name in Layout.model_fields),
    "trainer.max_tokens_per_micro_batch",
    "trainer.recompute",
    "trainer.offload",
    "trainer.reshardable_checkpoints",
}
"""What a run may be continued under a new value of: fields of the configuration, or keys of one."""


class RunConflict(ValueError):
    """A run directory belongs to a training with other settings."""


def open_run(config_name: str, overrides: Sequence[str]) -> tuple[Config, RunStore]:
    """The run that a configuration describes; its directory is made where it is missing.

    Args:
        config_name: of a file in configs/; or the address of a run's own config.yaml, which then counts as it is.
        overrides: `key=value`; none with a run's own.

    Raises:
        ConfigError: the configuration is not valid.
        RunConflict: the directory holds a run with other settings; names the fields.
    """
    if config_name.endswith(f"/{CONFIG_FILE}"):
        if overrides:
            raise RunConflict(f"{config_name} counts as it is: give its name instead of {', '.join(overrides)}")
        store = RunStore(config_name.removesuffix(f"/{CONFIG_FILE}"))
        return load(store.read_bytes(CONFIG_FILE).decode()), store
    config = compose(config_name, overrides)
    store = RunStore(config.run_url)
    if store.exists(CONFIG_FILE):
        before = load(store.read_bytes(CONFIG_FILE).decode())
        refuse_changes(before, config, store.url)
    store.write_bytes(CONFIG_FILE, dump(config).encode())
    store.assign_run_id()
    return config, store


def refuse_changes(before: Config, now: Config, run_url: str) -> None:
    """
    Raises:
        RunConflict: a field that decides the training's numbers differs; names each with both values.
    """
    old, new = _flat(before.model_dump(mode="json")), _flat(now.model_dump(mode="json"))
    changed = [
        f"{key}: {old.get(key)!r} → {new.get(key)!r}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and not MAY_CHANGE & {key, key.split(".")[0]}
    ]
    if changed:
        raise RunConflict(
            f"{run_url} was started with other settings ({'; '.join(changed)}): give the new training a name of "
            "its own (run=NAME), or the old settings"
        )


@contextmanager
def open_iteration(config_name: str, overrides: Sequence[str], number: int | None) -> Iterator[Iteration]:
    """Iteration `number` of the run, or its next one; nobody else works on the run as long as it is open.

    Another process that works on it is waited for.

    Raises:
        RunConflict: the run has not come that far.
    """
    config, store = open_run(config_name, overrides)
    with owned(store, wait=True):
        following = next_iteration(config, store)
        if number is not None and number > following:
            raise RunConflict(f"iteration {number} cannot be run yet: the next one of {store.url} is {following}")
        yield Iteration(config, store, following if number is None else number)


def next_iteration(config: Config, store: RunStore) -> int:
    """The newest iteration if something of it is missing, a stage or its metrics; else the one after it."""
    entries = store.ledger()
    newest = max((entry.iteration for entry in entries), default=0)
    if newest == 0:
        return 1
    done = {entry.stage for entry in entries if entry.iteration == newest}
    logged = any(row["iteration"] == newest for row in read_metrics(store.directory))
    return newest + 1 if logged and done.issuperset(plan_iteration(config, newest).stages) else newest


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
