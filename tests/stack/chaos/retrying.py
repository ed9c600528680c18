"""A user who presses Retry in the dashboard whenever a flow run has failed."""

from __future__ import annotations

import time

import httpx
import psutil

from tests.stack.pipeline import Up

GONE_SECONDS = 2.0
"""How long the process of a flow run is gone before anything is done. The Prefect worker says last how it ended, and
would take back a Retry that was pressed before."""


class Retrying:
    """Sees a flow run through. Dead services are `rlvr up`'s to start again."""

    def __init__(self, running: Up, flow_run: str, most: int) -> None:
        """
        Args:
            most: how often Retry may be pressed.
        """
        self.presses = 0
        self._up = running
        self._flow_run = flow_run
        self._most = most
        self._gone_since = float("inf")

    def look(self) -> bool:
        """Press Retry if that is due; whether the flow run is completed.

        Raises:
            TimeoutError: it failed more often than Retry may be pressed.
        """
        try:
            state = self._up.state_of(self._flow_run)
        except httpx.HTTPError:
            return False
        if state == "COMPLETED":
            return True
        if processes_of(self._flow_run):
            self._gone_since = float("inf")
            return False
        self._gone_since = min(self._gone_since, time.monotonic())
        if time.monotonic() < self._gone_since + GONE_SECONDS:
            return False
        if state == "RUNNING":
            self._up.mark_crashed(self._flow_run)
        elif state in ("FAILED", "CRASHED"):
            if self.presses == self._most:
                raise TimeoutError(f"{state.lower()} after {self.presses} retries")
            self.presses += 1
            self._up.press_retry(self._flow_run)
        return False


def processes_of(flow_run: str) -> list[psutil.Process]:
    """The processes of a flow run that are there."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("PREFECT__FLOW_RUN_ID") == flow_run:
                found.append(process)
        except psutil.Error:
            continue
    return found
