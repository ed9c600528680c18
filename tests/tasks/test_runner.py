"""How stages get to Ray."""

from __future__ import annotations

import gc

from tasks.runner import StageRunner
from tests.ray_process import ray_process


def collections_while_a_runner_is_left() -> list[int]:
    """Generations that were collected. Ray was connected before: leaving the runner does not leave Ray."""
    collected: list[int] = []

    def hear(phase: str, information: dict[str, int]) -> None:
        if phase == "start":
            collected.append(information["generation"])

    with StageRunner():
        gc.disable()
        gc.callbacks.append(hear)
    gc.callbacks.remove(hear)
    gc.enable()
    return collected


def test_a_stage_that_leaves_its_copy_of_the_runner_collects_no_garbage() -> None:
    # Every stage does, and a collection takes 0.2 s with all that it has imported.
    with ray_process() as process:
        assert process.submit(collections_while_a_runner_is_left).result() == []
