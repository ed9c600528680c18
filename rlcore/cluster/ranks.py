"""The ranks of one Megatron world: made together, called together, ended together.

They meet once, when they are made, so none can be replaced alone: where one is missing or has failed, all are made
anew, and whoever needs them restores what was in them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError, RayTaskError

from rlcore.cluster import placement
from rlcore.cluster.rank_process import Place, RankProcess, end_of_log
from rlcore.cluster.residents import actor_names, create, end, engine_clock, find, namespace

GRACE_SECONDS = 3.0
"""How long the other ranks have to end too once one has failed: the first to fail need not be the cause."""

logger = logging.getLogger(__name__)


class RankFailed(RuntimeError):
    """The process of a rank died. Says which, where, of what, and what it wrote last."""


@dataclass(frozen=True)
class Rank:
    """One process of a world."""

    actor: ActorHandle
    name: str
    place: Place

    def __str__(self) -> str:
        return f"{self.name} on {self.place}"


@dataclass(frozen=True)
class World:
    """All ranks of a role, by number."""

    role: str
    run_id: str
    ranks: tuple[Rank, ...]

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """What the method returned, by rank. The time counts as engine time of the running stage.

        Where ranks failed, but not all of them alike, the others may wait for them, or be out of step with them. Then
        all are ended before the error is raised.

        Raises:
            RankFailed: the process of a rank died.
            Exception: what the method raised, as it was raised, with the rank in a note.
        """
        return self._results(method, [rank.actor.call.remote(method, *arguments) for rank in self.ranks])

    def build(
        self, identity: str, module: str, name: str, arguments: Callable[[int, str, int], tuple[Any, ...]]
    ) -> None:
        """Make an object of that class on every rank.

        Args:
            identity: of what is built, by which `world` knows it again.
            arguments: of the class, for a rank's number, and the address and port where the ranks meet: the first's.

        Raises:
            as `call`.
        """
        first = self.ranks[0]
        port = ray.get(first.actor.free_port.remote())
        calls = [
            rank.actor.build.remote(identity, module, name, *arguments(number, first.place.address, port))
            for number, rank in enumerate(self.ranks)
        ]
        self._results("build", calls)

    def _results(self, doing: str, calls: Sequence[ray.ObjectRef]) -> list[Any]:
        with engine_clock():
            results, errors = _settled(calls)
            if errors:
                self._fail(doing, errors)
        return [results[number] for number in range(len(calls))]

    def _is_current(self) -> bool:
        """Whether nobody has made the role's ranks anew since."""
        own = {rank.actor._actor_id for rank in self.ranks}
        there = (find(name, self.run_id) for name in _names(self.role, self.run_id))
        return all(actor._actor_id in own for actor in there if actor is not None)

    def _fail(self, doing: str, errors: dict[int, RayError]) -> NoReturn:
        raised = {number: error.cause for number, error in errors.items() if isinstance(error, RayTaskError)}
        alike = len(raised) == len(self.ranks) and len({_brief(cause) for cause in raised.values()}) == 1
        if not alike and self._is_current():
            end_world(self.role, self.run_id)
        died = [number for number in errors if number not in raised]
        if died:
            rank, error = self.ranks[died[0]], errors[died[0]]
            lines = [f"{rank} died in {doing}: {_reason(error)}"]
            lines += [f"{self.ranks[number]} raised {_brief(cause)}" for number, cause in raised.items()]
            raise RankFailed("\n".join([*lines, end_of_log(rank.place)])) from error
        number, cause = next(iter(raised.items()))
        cause.add_note(f"raised in {doing} by {self.ranks[number]}")
        # Ray's own text is the whole remote traceback; that stays as the cause.
        raise cause from errors[number]


def world(
    role: str,
    run_id: str,
    size: int,
    num_gpus: float,
    environment: dict[str, str],
    kind: tuple[str, str],
    arguments: Callable[[int, str, int], tuple[Any, ...]],
    identity: str = "",
) -> World:
    """The run's ranks of that role; all made anew where they are fewer or more, or one is not built, or otherwise.

    One process at a time may call it for a role. A rank that is at work is waited for.

    Args:
        num_gpus: of each rank.
        environment: variables of each rank's process.
        kind: module and class of what each rank holds.
        arguments, identity: as those of `World.build`.

    Raises:
        NoRoom: the cluster has not the GPUs.
        RankFailed: a process died while it was made.
        Exception: what the class raised.
    """
    with engine_clock():
        actors = [actor for number in range(size) if (actor := find(f"{role}-{number}", run_id))]
        if len(actors) == size == len(_names(role, run_id)) and _all_built(actors, identity):
            return _located(role, run_id, actors)
        end_world(role, run_id)
    try:
        with engine_clock():
            room = placement.reserve(_room(role, run_id), size, num_gpus)
            actors = [
                create(
                    RankProcess,
                    f"{role}-{number}",
                    run_id,
                    environment=environment,
                    num_gpus=num_gpus,
                    scheduling_strategy=room.place(number),
                )
                for number in range(size)
            ]
            made = _located(role, run_id, actors)
        made.build(identity, *kind, arguments)
    except BaseException:
        end_world(role, run_id)
        raise
    return made


def end_world(role: str, run_id: str) -> None:
    """End the run's ranks of that role, however many there are, and give back their room."""
    end(_names(role, run_id), run_id)
    placement.remove(_room(role, run_id))


def _names(role: str, run_id: str) -> list[str]:
    """Of the actors that there are of a role."""
    return [name for name in actor_names(run_id) if name.startswith(f"{role}-")]


def _room(role: str, run_id: str) -> str:
    return f"{namespace(run_id)}/{role}"


def _located(role: str, run_id: str, actors: Sequence[ActorHandle]) -> World:
    places = ray.get([actor.place.remote() for actor in actors])
    ranks = zip(actors, places, strict=True)
    return World(
        role,
        run_id,
        tuple(Rank(actor, f"{role} rank {number}", place) for number, (actor, place) in enumerate(ranks)),
    )


def _all_built(actors: Sequence[ActorHandle], identity: str) -> bool:
    """Whether every rank holds its object.

    One that was never told to build it says so at once. The others may meanwhile wait for it where the ranks meet, so
    the first such answer decides.
    """
    pending = [actor.is_built.remote(identity) for actor in actors]
    while pending:
        done, pending = ray.wait(pending)
        try:
            if not ray.get(done[0]):
                return False
        except RayError as error:
            logger.warning("a rank is gone: %s", error)
            return False
    return True


def _settled(calls: Sequence[ray.ObjectRef]) -> tuple[dict[int, Any], dict[int, RayError]]:
    """Results and errors by rank, each in the order they came; after the first error, those of GRACE_SECONDS."""
    results: dict[int, Any] = {}
    errors: dict[int, RayError] = {}
    number_of = {call: number for number, call in enumerate(calls)}
    pending, deadline = list(calls), 0.0
    while pending:
        done, pending = ray.wait(pending, timeout=max(0.0, deadline - time.monotonic()) if errors else None)
        if not done:
            break
        number = number_of[done[0]]
        try:
            results[number] = ray.get(done[0])
        except RayError as error:
            deadline = deadline or time.monotonic() + GRACE_SECONDS
            errors[number] = error
    return results, errors


def _reason(death: RayError) -> str:
    """What Ray says after its lines, indented, that name the actor."""
    first, *others = [line for line in str(death).splitlines() if not line.startswith("\t")]
    return "\n".join(others) or first


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
