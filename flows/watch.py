"""A training watches the services that it started for itself: without one of them it cannot go on."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from flows.processes import Service, ServiceDied, dead_of, end

WATCH_SECONDS = 1.0
"""How often a training looks whether its services are alive."""
INTERRUPTS, INTERRUPT_SECONDS = 3, 5.0
"""How often a training whose service died is told to end, and how long it has after each time."""
NOTICE_SECONDS = 5.0
"""How long after a training failed one of its services may turn out to be the cause: `ray start` looks once a second
whether its processes are alive, and then ends the others."""


@contextmanager
def watched(needed: Sequence[Service], abandon: Callable[[ServiceDied], object]) -> Iterator[None]:
    """The block is interrupted as by Ctrl-C when a service dies.

    Args:
        abandon: called where no interrupt ends the block, with the services ended: Ray does not come back from a call
            to a dead head, but aborts the process after a minute.

    Raises:
        ServiceDied: instead of what the block raises, where a service died; with the end of its log.
    """
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(WATCH_SECONDS):
            if dead := dead_of(needed):
                # Who then waits for the dead one, to tell it of the interrupt, is interrupted too.
                for _ in range(INTERRUPTS):
                    os.kill(os.getpid(), signal.SIGINT)
                    if ended.wait(INTERRUPT_SECONDS):
                        return
                death = _death(dead[0])
                for service in reversed(needed):
                    end(service)
                abandon(death)

    watching = threading.Thread(target=watch, name="services", daemon=True)
    watching.start()
    try:
        yield
    except BaseException as error:
        ended.set()
        if isinstance(error, Exception):
            _wait_until(lambda: bool(dead_of(needed)), NOTICE_SECONDS)
        if dead := dead_of(needed):
            raise _death(dead[0]) from error
        raise
    finally:
        ended.set()
        watching.join()


def _death(service: Service) -> ServiceDied:
    return ServiceDied(
        f"{service.name} died during the training, which goes on from here by the same command; {service.log_end()}"
    )


def _wait_until(condition: Callable[[], bool], seconds: float) -> None:
    """Until it holds, but not longer than that."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.2)
