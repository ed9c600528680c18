"""Where a run that was forked comes from."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from rlcore.store import RunStore, StoreError

FORK_FILE = "fork.json"


class ForkRefused(ValueError):
    """A run cannot be forked there, or not with these settings."""


class Fork(BaseModel):
    """The iteration of another run that a run started from. What it has up to there is that run's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    """Of the run directory it was forked from."""
    run_id: str
    """Of that run."""
    iteration: int
    changed: dict[str, tuple[Any, Any]]
    """Fields of the configuration, dotted, with their values there and here."""
    ledger_lines: int
    """So many lines at the start of the ledger are that run's."""
    ledger_sha256: str
    """Of those lines."""
    forked_at: float
    """Unix time, seconds."""


def read_fork(store: RunStore) -> Fork | None:
    """None of a run that started from the untrained model.

    Raises:
        StoreError: fork.json cannot be read.
    """
    if not store.exists(FORK_FILE):
        return None
    try:
        return Fork.model_validate_json(store.read_bytes(FORK_FILE))
    except ValidationError as error:
        raise StoreError(f"{store.url}/{FORK_FILE} does not say where the run was forked: {error}") from None


def inherited_iterations(store: RunStore) -> int:
    """The iterations that are of the run it was forked from; 0 of a run that was not.

    They are never done again: their settings were others.
    """
    fork = read_fork(store)
    return fork.iteration if fork else 0


def refuse_before_fork(store: RunStore, version: int) -> None:
    """Updates that a fork has from another run cannot be applied in it: they had other settings.

    Args:
        version: of the policy that recorded batches would be applied to.

    Raises:
        StoreError: the run is a fork from a later version.
    """
    fork = read_fork(store)
    if fork is not None and version < fork.iteration:
        raise StoreError(
            f"{store.url} was forked from iteration {fork.iteration} of {fork.url}, and has no good checkpoint of it "
            "or of a later one: put one back from a copy of the run, or fork again"
        )
