"""Kills one process at one moment of one stage, as the kill matrix asks.

Python imports this module at the start of every process that has its directory on PYTHONPATH. It waits for the
module of the stages, and does nothing in processes that never import it. Which stages begin to compute, and what it
does, goes to the log beside the plan.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

STAGES = "tasks.stage"
WORKED_SECONDS = 0.03
"""Of processor time that a victim has worked at a call when it is killed."""
FROZEN_SECONDS = 0.2
"""Graders answer too quickly to be met at work: they are stopped first, then killed."""

_current: dict[str, Any] = {}
"""The stage that this process is at."""


class _Patched(importlib.abc.MetaPathFinder):
    """Patches the module of the stages once it is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != STAGES:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        load = spec.loader.exec_module

        def load_and_patch(module: ModuleType) -> None:
            load(module)
            _patch(module)

        spec.loader.exec_module = load_and_patch  # type: ignore[method-assign]
        return spec


def _patch(stages: ModuleType) -> None:
    from ray.actor import ActorMethod

    from rlcore.store import RunStore

    stages.identity_of = _before(_entered, stages.identity_of)  # type: ignore[attr-defined]
    stages.engine_time = _before(_began, stages.engine_time)  # type: ignore[attr-defined]
    for name, moment in {"write_batch": _computed, "write_report": _computed, "record": _recording}.items():
        setattr(RunStore, name, _before(moment, getattr(RunStore, name)))
    ActorMethod.remote = _called(ActorMethod.remote)


def _before(hear: Callable[..., None], function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, with `hear` called first. A stage is sent to its process by value: so what hears keeps no state."""

    @wraps(function)
    def heard(*arguments: Any, **named: Any) -> Any:
        hear(*arguments)
        return function(*arguments, **named)

    return heard


def _entered(iteration: Any, stage: str, *_: Any) -> None:
    _current.update(stage=stage, iteration=iteration.number, run_id=iteration.store.run_id)


def _began() -> None:
    _log("began")


def _computed(*_: Any) -> None:
    _strike_if("before output")


def _recording(*_: Any) -> None:
    _strike_if("before ledger")


def _called(remote: Callable[..., Any]) -> Callable[..., Any]:
    """Calls of an actor: where the plan names this one, its victim is killed while it works at it."""

    @wraps(remote)
    def calling(method: Any, *arguments: Any, **named: Any) -> Any:
        plan = _plan_for("working")
        if plan is None or not arguments or arguments[0] != plan["call"] or not _is_of(method, plan):
            return remote(method, *arguments, **named)
        victims = _victims(plan)
        if plan["victim"] in ("graders", "grader"):
            for pid in victims:
                os.kill(pid, signal.SIGSTOP)
            reference = remote(method, *arguments, **named)
            threading.Timer(FROZEN_SECONDS, _strike, (plan, victims, reference)).start()
        else:
            before = _worked(victims)
            reference = remote(method, *arguments, **named)
            threading.Thread(target=_strike_at_work, args=(plan, victims, before, reference), daemon=True).start()
        return reference

    return calling


def _plan_for(moment: str) -> dict[str, Any] | None:
    """The plan, if this is its moment and it was not carried out yet."""
    path = Path(os.environ["RLVR_KILL_PLAN"])
    plan: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    wanted = {"stage": _current.get("stage"), "iteration": _current.get("iteration"), "moment": moment}
    due = plan and all(plan[key] == value for key, value in wanted.items())
    return plan if due and not Path(plan["struck"]).exists() else None


def _strike_if(moment: str) -> None:
    if plan := _plan_for(moment):
        _strike(plan, _victims(plan))
        # One that ends with a victim, such as a process of a cluster whose head is gone, ends here, not later.
        time.sleep(5.0)


def _strike_at_work(plan: dict[str, Any], victims: list[int], before: float, reference: Any) -> None:
    while _worked(victims) < before + WORKED_SECONDS:
        time.sleep(0.001)
    _strike(plan, victims, reference)


def _strike(plan: dict[str, Any], victims: list[int], reference: Any = None) -> None:
    import ray

    answered = reference is not None and bool(ray.wait([reference], timeout=0)[0])
    Path(plan["struck"]).touch(exist_ok=False)
    _log("struck", victim=plan["victim"], pids=victims, answered=answered)
    for pid in victims:
        os.kill(pid, signal.SIGKILL)


def _is_of(method: Any, plan: dict[str, Any]) -> bool:
    """Whether it is a method of the victim, or of the scheduler, which the victim works for."""
    there = [_actor(name, _current["run_id"]) for name in (plan["victim"], "scheduler")]
    return method._actor._actor_id in [actor._actor_id for actor in there if actor is not None]


def _actor(victim: str, run_id: str) -> Any:
    from rlcore.cluster.residents import actor_names, find

    role = {"engine core": "engine", "grader": "graders"}.get(victim, victim)
    names = [name for name in actor_names(run_id) if name.startswith(f"{role}-")]
    return find(names[0], run_id) if names else None


def _victims(plan: dict[str, Any]) -> list[int]:
    """Process ids."""
    import psutil
    import ray._private.state as state

    victim = plan["victim"]
    if victim == "stage":
        return [os.getpid()]
    if victim == "flow":
        return [process.pid for process in psutil.process_iter() if _runs_flow(process, plan["flow_run"])]
    if victim in plan["services"]:
        service = psutil.Process(plan["services"][victim])
        # Ray's head is a program that starts others; the Prefect worker's children are the flows.
        return [service.pid, *(child.pid for child in service.children() if victim == "ray-head")]
    actor = _actor(victim, _current["run_id"])
    process = psutil.Process(state.actors(actor._actor_id.hex())["Pid"])
    if victim == "engine core":
        return [child.pid for child in process.children() if "EngineCore" in " ".join([child.name(), *child.cmdline()])]
    if victim == "grader":
        return [next(child.pid for child in process.children() if "rlcore.rewards.worker" in child.cmdline())]
    return [process.pid]


def _runs_flow(process: Any, flow_run: str) -> bool:
    import psutil

    try:
        return bool(process.environ().get("PREFECT__FLOW_RUN_ID") == flow_run)
    except psutil.Error:
        return False


def _worked(pids: list[int]) -> float:
    """Seconds of processor time of processes, those that are gone not counted."""
    import psutil

    times = [psutil.Process(pid).cpu_times() for pid in pids if psutil.pid_exists(pid)]
    return sum(time.user + time.system for time in times)


def _log(event: str, **what: Any) -> None:
    line = json.dumps({"event": event, "at": time.time(), "pid": os.getpid(), **_current, **what})
    with open(Path(os.environ["RLVR_KILL_PLAN"]).with_suffix(".log"), "a") as file:
        file.write(line + "\n")


if "RLVR_KILL_PLAN" in os.environ:
    sys.meta_path.insert(0, _Patched())
