"""How a stage that was submitted gets to a process on Ray."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from contextlib import ExitStack, nullcontext
from typing import Any
from uuid import uuid4

import ray
from prefect import Task
from prefect.client.schemas.objects import RunInput
from prefect.context import SettingsContext, SyncClientContext, get_settings_context, serialize_context
from prefect.futures import PrefectFuture
from prefect_ray import RayTaskRunner
from prefect_ray.task_runners import PrefectRayFuture

from rlcore.cluster.leaving import uncollected

INTERRUPT_SECONDS = 10.0
"""What the stages that still run get to end in, before their processes are ended."""


class StageRunner(RayTaskRunner[Any]):
    """A RayTaskRunner that sends little, to workers that keep what they have.

    Ray knows one function for all stages: one for every submission would be pickled, stored by the head and fetched
    by a worker each time, and none of them ever forgotten. Workers have the flow's environment, so they have its
    settings; and they keep one client of Prefect's API.

    No stage outlives its flow run. Those that still run when it ends, as when it is cancelled, are interrupted, and
    with them what they asked of asynchronous actors, such as the generation of responses. A rank of the trainer is not
    interrupted: an update that it has begun is applied as a whole.
    """

    def __init__(self, address: str | None = None, init_kwargs: dict[str, Any] | None = None) -> None:
        super().__init__(address, init_kwargs)
        self._submitted: list[ray.ObjectRef] = []

    def warm_up(self, seconds: float) -> None:
        """Have a worker that has imported the stages.

        Raises:
            TimeoutError, RayError: there is none within that time.
        """
        ray.get(_import_stages.remote(), timeout=seconds)

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
        self._submitted.append(reference)
        return PrefectRayFuture(task_run_id=task_run_id, wrapped_future=reference)

    def __exit__(self, *exc_info: Any) -> None:
        """Interrupt the stages that still run, then leave the cluster, if this runner entered it."""
        running = ray.wait(self._submitted, num_returns=len(self._submitted), timeout=0)[1] if self._submitted else []
        # The last first: one whose inputs failed would start, only to say so.
        for stage in reversed(running):
            ray.cancel(stage)
        if running:
            ray.wait(running, num_returns=len(running), timeout=INTERRUPT_SECONDS)
        self._submitted.clear()
        # Every stage enters and leaves a copy of this, which leaves nothing.
        leaves = self._owns_ray and ray.get_runtime_context().worker.mode == ray.SCRIPT_MODE
        with uncollected() if leaves else nullcontext():
            super().__exit__(*exc_info)


class _KnownSettings(SettingsContext):
    """Settings that whoever is sent the context has already."""

    def serialize(self, include_secrets: bool = True) -> dict[str, Any]:
        return {}


# Stages wait for actors, so they take no core; Ray must not run one again behind Prefect's back.
@ray.remote(num_cpus=0, max_retries=0)
def _run_stage(*upstream: Any, **submission: Any) -> Any:
    _keep_client()
    return RayTaskRunner._run_prefect_task(*upstream, **submission)


@ray.remote(num_cpus=0, max_retries=0)
def _import_stages() -> None:
    # What the stages import when they compute, torch with it: this takes seconds.
    import rlcore.train_batch  # noqa: F401
    import tasks.stages  # noqa: F401

    _keep_client()


@functools.cache
def _keep_client() -> ExitStack:
    """Prefect finds the client that was entered and makes none of its own; it is closed with the process."""
    stack = ExitStack()
    stack.enter_context(SyncClientContext())
    return stack
