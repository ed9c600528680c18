"""A process that has imported what a flow run needs, and waits to be given one: `python -m flows.standby`.

It does what `python -m prefect.engine` does, which the Prefect worker would start, without the seconds of its start.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import sys
from uuid import UUID

FLOW_RUN_ID = "PREFECT__FLOW_RUN_ID"
NO_FLOW_RUN = str(UUID(int=0))
"""The value of FLOW_RUN_ID that a standby is started with."""


def main() -> None:
    """Import, wait for one line of JSON on stdin with the variables of a flow run, run it. Without a line, end."""
    import prefect._internal.metrics
    import prefect.flow_engine

    import flows.rlvr
    import flows.train  # noqa: F401

    line = sys.stdin.buffer.readline()
    if not line:
        return
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), sys.stdin.fileno())
    variables = json.loads(line)
    _show(variables[FLOW_RUN_ID])
    os.environ.update(variables)
    runpy.run_module("prefect.engine", run_name="__main__", alter_sys=True)


def _show(flow_run_id: str) -> None:
    """Have /proc/PID/environ name the flow run, as it would of a process that was started for it.

    The kernel shows the memory in which the variables were when the process started, and there this one still is.
    """
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    ctypes.memmove(getenv(FLOW_RUN_ID.encode()), flow_run_id.encode(), len(NO_FLOW_RUN))


if __name__ == "__main__":
    main()
