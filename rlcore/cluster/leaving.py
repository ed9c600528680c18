"""Leaving a Ray cluster."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """What is garbage is collected now, and none in this block, in whatever thread.

    For the end of Ray's connection, which lets other threads run: one that collects an object reference or an actor's
    handle right then asks the connection that is gone, for which Ray (2.60, core_worker_process.cc) ends the process.
    """
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
