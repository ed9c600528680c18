"""How flows run their stages on Ray."""

from __future__ import annotations

import os
from pathlib import Path

from prefect.runtime import flow_run

from flows import services
from tasks.runner import StageRunner

SETTINGS = ("PREFECT_API_", "PREFECT_LOGGING_", "RAY_AUTH_")
"""Environment variables by prefix that every process of a run needs, on whatever node."""


def flow_run_name() -> str:
    """`arithmetic`, or `arithmetic 12` where the iteration is given: from the parameters of the flow run."""
    parameters = flow_run.parameters
    path = Path(parameters["config"])
    run = path.parent.name if path.suffix else path.name
    return " ".join([run, *([str(parameters["iteration"])] if parameters.get("iteration") is not None else [])])


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
