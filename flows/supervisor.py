"""The supervisor of `rlvr up`: starts again the services that die, with pauses that grow, and not for ever.

A process of its own, `python -m flows.supervisor`, which writes what it does to its log. A head of Ray that was started
again is a new cluster: the stages make their actors anew, and restore what was in them.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass, field

from flows import services
from flows.processes import ServiceError, end

LOOK_SECONDS = 1.0
WINDOW_SECONDS = 600.0
RESTARTS = 5
"""Of one service within WINDOW_SECONDS; when it dies once more, it is given up."""
LONGEST_PAUSE_SECONDS = 30.0

logger = logging.getLogger("supervisor")


@dataclass
class Budget:
    """When a service was started again, and whether and when it may be once more. Times are `time.monotonic()`."""

    restarts: deque[float] = field(default_factory=deque)

    def pause(self, now: float) -> float | None:
        """Seconds to wait before the next start: 0, then 1, 2, 4, …; None if the budget is spent."""
        while self.restarts and now - self.restarts[0] > WINDOW_SECONDS:
            self.restarts.popleft()
        spent = len(self.restarts)
        if spent >= RESTARTS:
            return None
        return min(2.0 ** (spent - 1), LONGEST_PAUSE_SECONDS) if spent else 0.0

    def spend(self, now: float) -> None:
        self.restarts.append(now)


class Supervisor:
    """Looks after the services that the record of `rlvr up` names."""

    def __init__(self) -> None:
        self._budgets: dict[str, Budget] = {}
        self._not_before: dict[str, float] = {}
        self._deaths: Counter[str] = Counter()

    def run(self) -> None:
        """Until the record is gone."""
        while services.read_record() is not None:
            time.sleep(LOOK_SECONDS)
            if self._missing(services.read_record()):
                try:
                    with services.changing_record():
                        self.look()
                except OSError as error:
                    logger.warning("%s; looking again", error)

    def look(self) -> None:
        """Start what died and may be started now. Only under `services.changing_record`."""
        running = services.read_record()
        if running is None:
            return
        # What is started must be recorded: where there is no space for that, nothing is.
        services.write_record(running)
        for service in self._missing(running):
            name, now = service.name, time.monotonic()
            if name not in self._not_before:
                self._died(running, service, now)
            if name in self._not_before and now >= self._not_before[name]:
                self._restart(running, service, now)
        services.write_record(running)

    def _missing(self, running: services.Services | None) -> list[services.Service]:
        """The dead services that were not given up."""
        return [s for s in running.dead() if s.name not in running.given_up] if running else []

    def _died(self, running: services.Services, service: services.Service, now: float) -> None:
        self._deaths[service.name] += 1
        pause = self._budgets.setdefault(service.name, Budget()).pause(now)
        logger.warning("%s (pid %d) died; %s", service.name, service.pid, service.log_end())
        if pause is None:
            story = (
                f"died {self._deaths[service.name]} times, the last {RESTARTS + 1} of them within "
                f"{WINDOW_SECONDS / 60:.0f} minutes, and is not started again; {service.log_end()}"
            )
            running.given_up[service.name] = story
            logger.error("%s %s", service.name, story)
            del self._budgets[service.name]
        else:
            self._not_before[service.name] = now + pause

    def _restart(self, running: services.Services, service: services.Service, now: float) -> None:
        del self._not_before[service.name]
        self._budgets[service.name].spend(now)
        try:
            services.restart(running, service)
            logger.info("%s was started again", service.name)
        except ServiceError as error:
            # It is dead, or answers nobody: the next look finds it dead, and spends more of the budget.
            logger.error("%s", error)
            started = running.named(service.name)
            if started is not None:
                end(started)


def main() -> None:
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(asctime)s %(message)s")
    Supervisor().run()


if __name__ == "__main__":
    main()
