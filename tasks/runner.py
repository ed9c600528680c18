"""How a stage that was submitted gets to a process on Ray."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import ray
from prefect import Task
from prefect.client.schemas.objects import RunInput
from prefect.context import SettingsContext, SyncClientContext, get_settings_context, serialize_context
from prefect.futures import PrefectFuture
from prefect_ray import RayTaskRunner
from prefect_ray.task_runners import PrefectRayFuture


class StageRunner(RayTaskRunner[Any]):
    """A RayTaskRunner that sends little, to workers that keep what they have.

    Ray knows one function for all stages: one for every submission would be pickled, stored by the head and fetched
    by a worker each time, and none of them ever forgotten. Workers have the flow's environment, so they have its
    settings; and they keep one client of Prefect's API.
    """

    def submit(
        self,
        task: Task[Any, Any],
        parameters: dict[str, Any],
        wait_for: Iterable[PrefectFuture[Any]] | None = None,
        dependencies: dict[str, set[RunInput]] | None = None,
    ) -> PrefectRayFuture[Any]:
        """Run a stage on Ray once the futures among its parameters are done."""
        parameters, upstream = self._exchange_prefect_for_ray_futures(parameters)
        settings = get_settings_context()
        with _KnownSettings(profile=settings.profile, settings=settings.settings):
            context = serialize_context()
        task_run_id = uuid4()
        reference = _run_stage.options(name=task.name).remote(
            *upstream,
            task=task,
            task_run_id=task_run_id,
            parameters=parameters,
            wait_for=wait_for,
            dependencies=dependencies,
            context=context,
        )
        return PrefectRayFuture(task_run_id=task_run_id, wrapped_future=reference)


class _KnownSettings(SettingsContext):
    """Settings that whoever is sent the context has already."""

    def serialize(self, include_secrets: bool = True) -> dict[str, Any]:
        return {}


# Stages wait for actors, so they take no core; Ray must not run one again behind Prefect's back.
@ray.remote(num_cpus=0, max_retries=0)
def _run_stage(*upstream: Any, **submission: Any) -> Any:
    _keep_client()
    return RayTaskRunner._run_prefect_task(*upstream, **submission)


@functools.cache
def _keep_client() -> ExitStack:
    """Prefect finds the client that was entered and makes none of its own; it is closed with the process."""
    stack = ExitStack()
    stack.enter_context(SyncClientContext())
    return stack
