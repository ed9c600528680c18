"""The Prefect worker of `rlvr up`, `python -m flows.worker`: of type `process`, but fast to start a flow run.

A process stands by for the next one, and what is scheduled is taken at once, not at the next query.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import anyio
import httpx
import prefect.runner.runner
from prefect.events.clients import get_events_subscriber
from prefect.events.filters import EventFilter, EventNameFilter
from prefect.utilities.processutils import setup_signal_handlers_worker
from prefect.workers.process import ProcessWorker
from websockets.exceptions import WebSocketException

from flows.flow_processes import FlowRunProcesses
from flows.services import POOL

SCHEDULED = ["prefect.flow-run.Scheduled", "prefect.flow-run.AwaitingRetry"]
LISTEN_AGAIN_SECONDS = 3.0


async def work() -> None:
    """Until the worker is told to end."""
    async with FlowRunProcesses(Path.cwd()) as processes, anyio.create_task_group() as group:
        # Prefect has no setting for it; its source says to replace the function where it is used.
        prefect.runner.runner.run_process = processes.run  # type: ignore[assignment]
        setup_signal_handlers_worker(os.getpid(), "the Prefect worker", print)
        worker = ProcessWorker(work_pool_name=POOL)
        group.start_soon(take_at_once, worker)
        await worker.start()
        group.cancel_scope.cancel()


async def take_at_once(worker: ProcessWorker) -> None:
    """Look for flow runs whenever the server says that one was scheduled.

    The worker looks for them by itself every PREFECT_WORKER_QUERY_SECONDS, so none is lost where this hears nothing.
    """
    scheduled = EventFilter(event=EventNameFilter(name=SCHEDULED))
    while True:
        with suppress(OSError, WebSocketException, httpx.HTTPError):
            async with get_events_subscriber(scheduled) as events:
                async for _ in events:
                    if worker.is_setup:
                        await worker.get_and_submit_flow_runs()
        await anyio.sleep(LISTEN_AGAIN_SECONDS)


def main() -> None:
    with suppress(KeyboardInterrupt):
        asyncio.run(work())


if __name__ == "__main__":
    main()
