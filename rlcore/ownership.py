"""One process at a time works on a run: who it is stands in the run directory, with a beat that shows it is alive.

No clock is compared with another: an owner on this machine is alive if its process is, one elsewhere if its beat goes
on while this process looks.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import psutil
from pydantic import BaseModel, ConfigDict, ValidationError

from rlcore.machine import started
from rlcore.store import RunStore, StoreError

logger = logging.getLogger(__name__)

OWNER_FILE = "owner.json"
BEAT_SECONDS = 5.0
SILENCE_SECONDS = 30.0
"""So long without a beat, an owner on another machine is taken for dead."""
WAIT_SECONDS = 1.0
"""How often one that waits for the run looks whether it is free."""


class RunBusy(RuntimeError):
    """Another process works on the run."""


class Owner(BaseModel):
    """A process that works on a run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    host: str
    pid: int
    created: float
    """`rlcore.machine.started`: with the pid it tells the process from a later one of the same number."""
    since: datetime
    beat: int = 0

    @classmethod
    def here(cls) -> Owner:
        return cls(
            id=uuid.uuid4().hex,
            host=socket.gethostname(),
            pid=os.getpid(),
            created=started(os.getpid()),
            since=datetime.now(UTC),
        )

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since:%Y-%m-%d %H:%M:%S} UTC"


_held: set[str] = set()
"""Addresses of the runs that this process owns: a flow that another calls works on the same run."""


@contextmanager
def owned(store: RunStore, *, wait: bool = False) -> Iterator[None]:
    """This process owns the run for as long as the block lasts, and says so every BEAT_SECONDS.

    An owner that is dead is replaced. Should another process come to think so of this one, which takes a machine that
    stood still for SILENCE_SECONDS, this one is interrupted as by Ctrl-C.

    Args:
        wait: for an owner that is alive to end, instead of being refused.

    Raises:
        RunBusy: another process owns it; names that one.
        StoreError: the run is not on a file system.
    """
    if store.url in _held:
        yield
        return
    me = Owner.here()
    for attempt in itertools.count():
        try:
            _take(store, me)
            break
        except RunBusy as busy:
            if not wait:
                raise
            if attempt == 0:
                logger.info("waiting: %s", busy)
            time.sleep(WAIT_SECONDS)
    ended = threading.Event()
    beating = threading.Thread(target=_beat, args=(store, me, ended), name="run-owner", daemon=True)
    beating.start()
    _held.add(store.url)
    try:
        yield
    finally:
        _held.remove(store.url)
        ended.set()
        beating.join()
        with store.lock("owner"):
            if _is_still(me, store):
                (store.directory / OWNER_FILE).unlink()


def owner(store: RunStore) -> Owner | None:
    """Who works on the run, or died doing so."""
    try:
        return Owner.model_validate_json(store.read_bytes(OWNER_FILE))
    except (StoreError, ValidationError):
        return None


def _take(store: RunStore, me: Owner) -> None:
    with store.lock("owner"):
        _refuse_alive(store)
        _write(store, me)


def _refuse_alive(store: RunStore) -> None:
    before = owner(store)
    if before is None:
        return
    if _is_alive(before, store):
        raise RunBusy(f"{store.url} is being worked on by {before}: wait until it ends, or end it")
    logger.warning("%s was left by %s, which is gone: this process goes on with it", store.url, before)


def _is_alive(before: Owner, store: RunStore) -> bool:
    if before.host == socket.gethostname():
        try:
            process = psutil.Process(before.pid)
            return started(before.pid) == before.created and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False
    end = time.monotonic() + SILENCE_SECONDS
    while time.monotonic() < end:
        time.sleep(min(BEAT_SECONDS, SILENCE_SECONDS) / 5)
        now = owner(store)
        if now is None:
            return False
        if now != before:
            return True
    return False


def _beat(store: RunStore, me: Owner, ended: threading.Event) -> None:
    beats = 0
    while not ended.wait(BEAT_SECONDS):
        beats += 1
        lost = False
        try:
            with store.lock("owner"):
                lost = not _is_still(me, store)
                if not lost:
                    _write(store, me.model_copy(update={"beat": beats}))
        except StoreError as error:
            logger.warning("the owner of the run cannot say that it is alive: %s", error)
        if lost:
            logger.error("%s was taken over by %s: this process stops", store.url, owner(store))
            os.kill(os.getpid(), signal.SIGINT)
            return


def _is_still(me: Owner, store: RunStore) -> bool:
    now = owner(store)
    return now is not None and now.id == me.id


def _write(store: RunStore, who: Owner) -> None:
    store.write_bytes(OWNER_FILE, who.model_dump_json().encode())
