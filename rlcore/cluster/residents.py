"""Named Ray actors: long-lived objects that outlive the flow run that made them.

An actor is found by its name in the namespace of its run, so a retry, or another flow run on the
same cluster, meets the same warm engine.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError

from rlcore.cluster import placement
from rlcore.progress import doing, progress_file, report_to

QUIET_THREADS = {
    # Idle OpenMP threads that spin starve the other processes of a small machine.
    "OMP_WAIT_POLICY": "PASSIVE",
    "RAY_DEDUP_LOGS": "0",
}
WAKEFUL_THREADS = {
    # To wake a thread takes longer than most operations on a micro-batch: they wait some 0.2 ms for the next one.
    # GNU's OpenMP forgets the number where it counts more threads than cores, unless the policy is active.
    "OMP_WAIT_POLICY": "ACTIVE",
    "GOMP_SPINCOUNT": "20000",
}
STEADY_MEMORY = {
    # Activations are freed and asked for again at every micro-batch: all but the largest stay in the heap, where
    # they cost no page faults. The largest would leave holes in it that nothing fits.
    "MALLOC_MMAP_THRESHOLD_": str(16 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 33),
    # oneDNN keeps the code it made for each shape, and micro-batches rarely have the same shape twice.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32",
}

END_SECONDS = 30.0
BUSY_SECONDS = 1.0
"""So long an actor that is at something else may take to say that it is there."""


class Resident:
    """An object of a class that only its own process imports, and that process's progress."""

    def __init__(self, progress: Path, module: str, name: str, *arguments: Any) -> None:
        report_to(progress)
        with doing("start"):
            self._object = getattr(importlib.import_module(module), name)(*arguments)

    def call(self, method: str, *arguments: Any) -> Any:
        with doing(method):
            return getattr(self._object, method)(*arguments)


class AsyncResident(Resident):
    """For a class whose methods are coroutines: calls overlap."""

    async def call(self, method: str, *arguments: Any) -> Any:
        with doing(method):
            return await getattr(self._object, method)(*arguments)


def namespace(run_id: str) -> str:
    """The Ray namespace of a run's actors. By id, so that a run made anew under an old name meets none of the old."""
    return f"rlvr-{run_id}"


def find(name: str, run_id: str) -> ActorHandle | None:
    """The actor of that name, if it is there."""
    try:
        return ray.get_actor(name, namespace=namespace(run_id))
    except ValueError:
        return None


def actor_names(run_id: str) -> list[str]:
    """Of the run's actors."""
    every = ray.util.list_named_actors(all_namespaces=True)
    return [actor["name"] for actor in every if actor["namespace"] == namespace(run_id)]


def create(
    actor: type[Any],
    name: str,
    run_id: str,
    arguments: tuple[Any, ...] = (),
    *,
    environment: dict[str, str],
    num_gpus: float = 0,
    **options: Any,
) -> ActorHandle:
    """An actor of that name in the run's namespace, in a process of its own. It stays until it is ended.

    Args:
        options: further ones of Ray's.
    """
    options |= {"name": name, "namespace": namespace(run_id), "lifetime": "detached"}
    options |= {"num_cpus": 0, "num_gpus": num_gpus, "runtime_env": {"env_vars": environment}}
    return ray.remote(actor).options(**options).remote(*arguments)


def get_or_create(
    resident: type[Resident],
    name: str,
    run_id: str,
    directory: Path,
    arguments: tuple[Any, ...],
    environment: dict[str, str],
    *,
    identity: str,
    num_gpus: float = 0,
) -> ActorHandle:
    """The actor of that name in the run's namespace; made where it is missing, dead, or made under other settings.

    Args:
        directory: of the run.
        arguments: module and class of what it holds, and the arguments of that class.
        identity: digest of the settings that it depends on. The start of it is in the actor's full name.

    Raises:
        TimeoutError: one that is dead still has the name after END_SECONDS.
    """
    full_name, deadline = f"{name}-{identity[:12]}", time.monotonic() + END_SECONDS
    while there := find(full_name, run_id):
        if _is_alive(there):
            return there
        if time.monotonic() > deadline:
            raise TimeoutError(f"the dead actor {name} of run {run_id} kept its name for {END_SECONDS:.0f} s")
        time.sleep(0.05)
    end([other for other in actor_names(run_id) if other.startswith(f"{name}-")], run_id)
    arguments = (progress_file(directory, name), *arguments)
    return create(
        resident, full_name, run_id, arguments, environment=environment, num_gpus=num_gpus, get_if_exists=True
    )


def _is_alive(actor: ActorHandle) -> bool:
    """Whether its process is there: one that just died can be found by name for a moment. A busy one is there."""
    ready = actor.__ray_ready__.remote()
    if ray.wait([ready], timeout=BUSY_SECONDS)[0]:
        try:
            ray.get(ready, timeout=BUSY_SECONDS)
        except RayActorError:
            return False
    return True


def end(names: Collection[str], run_id: str) -> None:
    """End the actors of those names, and wait until the names are free for new ones.

    Raises:
        TimeoutError: one is still there after END_SECONDS.
    """
    deadline = time.monotonic() + END_SECONDS
    while there := [actor for name in names if (actor := find(name, run_id))]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"actors {', '.join(names)} of run {run_id} did not end in {END_SECONDS:.0f} s")
        for actor in there:
            ray.kill(actor)
        time.sleep(0.05)


def release(run_id: str) -> None:
    """End all actors of a run, and give back their room."""
    end(actor_names(run_id), run_id)
    placement.remove(f"{namespace(run_id)}/")
