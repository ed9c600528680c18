"""How flows run their stages on Ray."""

from __future__ import annotations

import functools
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from prefect.context import SyncClientContext
from prefect.runtime import flow_run
from prefect_ray import RayTaskRunner

from flows import services

SETTINGS = ("PREFECT_API_", "PREFECT_LOGGING_", "RAY_AUTH_")
"""Environment variables by prefix that every process of a run needs, on whatever node."""


def flow_run_name() -> str:
    """`arithmetic`, or `arithmetic 12` where the iteration is given: from the parameters of the flow run."""
    parameters = flow_run.parameters
    path = Path(parameters["config"])
    run = path.parent.name if path.suffix else path.name
    return " ".join([run, *([str(parameters["iteration"])] if parameters.get("iteration") is not None else [])])


class StageRunner(RayTaskRunner[Any]):
    """A RayTaskRunner whose workers keep the settings they started with, and one client of Prefect's API.

    They have the flow's environment, so the settings that Prefect sends with every task are those they have.
    Reading them again for every task, and making two clients with a certificate store each, costs more than the rest
    of starting it.
    """

    @staticmethod
    def _run_prefect_task(*upstream: Any, context: dict[str, Any], **arguments: Any) -> Any:
        context.pop("settings_context")
        _keep_client()
        return RayTaskRunner._run_prefect_task(*upstream, context=context, **arguments)


@functools.cache
def _keep_client() -> ExitStack:
    """Prefect finds the client that was entered and makes none of its own; it is closed with the process."""
    stack = ExitStack()
    stack.enter_context(SyncClientContext())
    return stack


def stage_runner() -> StageRunner:
    """Stages run on the Ray cluster of RAY_ADDRESS, or on that of `rlvr up`. Never on one of Prefect's making."""
    if "RAY_ADDRESS" not in os.environ and (up := services.recorded()):
        services.use(up)
    return StageRunner(
        address=os.environ.get("RAY_ADDRESS", f"{services.HOST}:6379"),
        init_kwargs={
            "log_to_driver": False,
            "logging_level": "ERROR",
            "runtime_env": {
                "env_vars": {name: value for name, value in os.environ.items() if name.startswith(SETTINGS)}
            },
        },
    )
