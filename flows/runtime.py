"""How flows reach Ray."""

from __future__ import annotations

import os
from typing import Any

from prefect_ray import RayTaskRunner

from flows import services


def ray_task_runner() -> RayTaskRunner[Any]:
    """Stages run on the Ray cluster of RAY_ADDRESS, or on that of `rlvr up`. Never on one of Prefect's making."""
    if "RAY_ADDRESS" not in os.environ and (up := services.recorded()):
        services.use(up)
    return RayTaskRunner(
        address=os.environ.get("RAY_ADDRESS", f"{services.HOST}:6379"),
        init_kwargs={"log_to_driver": False, "logging_level": "ERROR"},
    )
