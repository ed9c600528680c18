"""The ranks of one Megatron world: made together, called together, ended together.

They meet once, when they are made, so none can be replaced alone: where one is missing or has failed, all are made
anew, and whoever needs them restores what was in them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ray.actor import ActorHandle
from ray.exceptions import RayError, RayTaskError

from rlcore.cluster import placement
from rlcore.cluster.rank_process import Place, RankProcess, end_of_log
from rlcore.cluster.residents import actor_names, create, end, find, namespace
from rlcore.cluster.waiting import Call, Supervision, as_settled, engine_clock, results_of
from rlcore.deadlines import DeadlineExceeded, StageStalled
from rlcore.progress import progress_file

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
    supervision: Supervision

    def call(self, method: str, *arguments: Any, silent: bool = False) -> list[Any]:
        """What the method returned, by rank. The time counts as engine time of the running stage.

        Where ranks failed, but not all of them alike, the others may wait for them, or be out of step with them. Then
        all are ended before the error is raised.

        Args:
            silent: the method shows no progress while it lasts.

        Raises:
            RankFailed: the process of a rank died.
            StageStalled, DeadlineExceeded: ranks hang, or take too long. All are ended then.
            Exception: what the method raised, as it was raised, with the rank in a note.
        """
        return self._results(method, _calls(self.role, self._actors, "call", method, *arguments), silent)

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
        [port] = self._results("free_port", _calls(self.role, self._actors[:1], "free_port"))
        calls = [
            Call(
                _actor_name(self.role, number),
                rank.actor,
                rank.actor.build.remote(identity, module, name, *arguments(number, first.place.address, port)),
            )
            for number, rank in enumerate(self.ranks)
        ]
        self._results("build", calls, silent=True)

    @property
    def _actors(self) -> list[ActorHandle]:
        return [rank.actor for rank in self.ranks]

    def _results(self, doing: str, calls: Sequence[Call], silent: bool = False) -> list[Any]:
        deadlines = self.supervision.deadlines
        silence = deadlines.silent_seconds if silent else deadlines.stall_seconds
        results: dict[int, Any] = {}
        errors: dict[int, RayError] = {}
        with engine_clock():
            try:
                for settled in as_settled(
                    calls, f"{doing} by {self.role}", self.supervision, silence, grace=GRACE_SECONDS
                ):
                    if settled.error is None:
                        results[settled.number] = settled.result
                    else:
                        errors[settled.number] = settled.error
            except (StageStalled, DeadlineExceeded):
                if self._is_current():
                    end_world(self.role, self.run_id)
                raise
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
    supervision: Supervision,
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
        StageStalled, DeadlineExceeded: a rank hangs, or takes too long.
        Exception: what the class raised.
    """
    actors = [actor for number in range(size) if (actor := find(_actor_name(role, number), run_id))]
    complete = len(actors) == size == len(_names(role, run_id))
    if complete and _all_built(actors, role, identity, supervision):
        return _located(role, run_id, actors, supervision)
    with engine_clock():
        end_world(role, run_id)
    try:
        with engine_clock():
            room = placement.reserve(_room(role, run_id), size, num_gpus)
            actors = [
                create(
                    RankProcess,
                    _actor_name(role, number),
                    run_id,
                    (progress_file(supervision.directory, _actor_name(role, number)),),
                    environment=environment,
                    num_gpus=num_gpus,
                    scheduling_strategy=room.place(number),
                )
                for number in range(size)
            ]
        made = _located(role, run_id, actors, supervision)
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


def _actor_name(role: str, number: int) -> str:
    return f"{role}-{number}"


def _calls(role: str, actors: Sequence[ActorHandle], method: str, *arguments: Any) -> list[Call]:
    """The same call of each rank."""
    return [
        Call(_actor_name(role, number), actor, getattr(actor, method).remote(*arguments))
        for number, actor in enumerate(actors)
    ]


def _located(role: str, run_id: str, actors: Sequence[ActorHandle], supervision: Supervision) -> World:
    """
    Raises:
        RayActorError: a rank died.
        StageStalled: a rank does not come up, or does not answer.
    """
    places = results_of(
        _calls(role, actors, "place"), f"start of {role}", supervision, supervision.deadlines.silent_seconds
    )
    ranks = zip(actors, places, strict=True)
    return World(
        role,
        run_id,
        tuple(Rank(actor, f"{role} rank {number}", place) for number, (actor, place) in enumerate(ranks)),
        supervision,
    )


def _all_built(actors: Sequence[ActorHandle], role: str, identity: str, supervision: Supervision) -> bool:
    """Whether every rank holds its object.

    One that was never told to build it says so at once. The others may meanwhile wait for it where the ranks meet, so
    the first such answer decides.
    """
    calls = _calls(role, actors, "is_built", identity)
    with engine_clock():
        for settled in as_settled(calls, f"is_built by {role}", supervision, supervision.deadlines.stall_seconds):
            if settled.error is not None:
                logger.warning("a rank is gone: %s", settled.error)
            if not settled.result:
                return False
    return True


def _reason(death: RayError) -> str:
    """What Ray says after its lines, indented, that name the actor."""
    first, *others = [line for line in str(death).splitlines() if not line.startswith("\t")]
    return "\n".join(others) or first


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
