"""A process that is ready for a flow run, and waits to be given one: `python -m flows.standby`.

It does what `python -m prefect.engine` does, which the Prefect worker would start, without the seconds before the flow
begins: it has imported the flows, is connected to Ray, and has a Ray worker that has imported the stages. Whatever is
wrong, it ends before it takes a flow run, and the flow run gets a process of its own.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import socket
import sys
from uuid import UUID

FLOW_RUN_ID = "PREFECT__FLOW_RUN_ID"
NO_FLOW_RUN = str(UUID(int=0))
"""The value of FLOW_RUN_ID that a standby is started with."""
TAKEN = b"+"
"""The answer to whoever gives a flow run."""
WARM_UP_SECONDS = 60.0
STILL_WARM_SECONDS = 2.0
"""For what takes milliseconds, unless Ray is gone, or another one by now."""


def main() -> None:
    """Take the flow run whose variables come as one line of JSON through the socket that is stdin.

    Ends without one when the other side is closed.
    """
    import prefect._internal.metrics
    import prefect.engine
    import prefect.flow_engine

    import flows.rlvr
    import flows.train  # noqa: F401
    from flows.runtime import stage_runner

    # The flow finds Ray connected, and leaves it so.
    with stage_runner() as stages, socket.socket(fileno=os.dup(sys.stdin.fileno())) as giver:
        stages.warm_up(WARM_UP_SECONDS)
        line = giver.makefile("rb").readline()
        if not line:
            return
        stages.warm_up(STILL_WARM_SECONDS)
        variables = json.loads(line)
        _show(variables[FLOW_RUN_ID])
        os.environ.update(variables)
        giver.sendall(TAKEN)
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), sys.stdin.fileno())
        runpy.run_path(prefect.engine.__file__, run_name="__main__")


def _show(flow_run_id: str) -> None:
    """Have /proc/PID/environ name the flow run, as it would of a process that was started for it.

    The kernel shows the memory in which the variables were when the process started, and there this one still is.
    """
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    ctypes.memmove(getenv(FLOW_RUN_ID.encode()), flow_run_id.encode(), len(NO_FLOW_RUN))


if __name__ == "__main__":
    main()
