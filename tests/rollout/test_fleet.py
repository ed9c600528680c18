"""Which engine gets a request."""

from __future__ import annotations

from benchmarks.simulation.simulated_engine import SimulatedEngine
from rlcore.rollout.fleet import Fleet
from tests.rollout.prompts import request

ONE, OTHER = (1, 2, 3, 4), (5, 6, 7, 8)


def engine() -> SimulatedEngine:
    return SimulatedEngine(lambda request: 1, 1.0)


def fleet_of(count: int, capacity: int = 8) -> Fleet:
    fleet = Fleet()
    fleet.attach({f"engine{number}": engine() for number in range(count)}, capacity)
    return fleet


def send(fleet: Fleet, name: str, prompt: tuple[int, ...]) -> str:
    """Name of the engine that gets it."""
    member = fleet.choose(request(name, prompt))
    assert member is not None
    fleet.began(member, request(name, prompt))
    return member.name


def test_a_group_is_spread_over_engines() -> None:
    fleet = fleet_of(4)
    assert {send(fleet, f"a{number}", ONE) for number in range(4)} == set(fleet.members)


def test_of_two_engines_with_as_much_to_do_the_one_that_has_the_prompt_gets_it() -> None:
    for first, second in ((ONE, OTHER), (OTHER, ONE)):
        fleet = fleet_of(2)
        places = {first: send(fleet, "a", first), second: send(fleet, "b", second)}
        assert places[ONE] != places[OTHER]
        assert send(fleet, "c", ONE) == places[ONE]


def test_an_engine_with_less_to_do_is_chosen_over_one_that_has_the_prompt() -> None:
    fleet = fleet_of(2)
    first = send(fleet, "a", ONE)
    assert send(fleet, "b", ONE) != first


def test_a_prompt_is_forgotten_with_its_last_request() -> None:
    fleet = fleet_of(1)
    (member,) = fleet.members.values()
    for name in ("a", "b"):
        send(fleet, name, ONE)
    fleet.ended(member, request("a", ONE), 10)
    assert member.prompts[ONE] == 1
    fleet.ended(member, request("b", ONE), 10)
    assert not member.prompts and not member.running
    assert abs(member.outstanding) < 1e-6


def test_full_engines_get_nothing() -> None:
    fleet = fleet_of(2, capacity=1)
    assert {send(fleet, "a", ONE), send(fleet, "b", ONE)} == set(fleet.members)
    assert fleet.choose(request("c", ONE)) is None


def test_an_engine_that_is_gone_gets_nothing_and_one_of_its_name_starts_empty() -> None:
    fleet = fleet_of(1)
    (member,) = fleet.members.values()
    send(fleet, "a", ONE)
    fleet.remove(member)
    assert fleet.choose(request("b", ONE)) is None
    fleet.attach({member.name: engine()}, 8)
    fleet.remove(member)
    again = fleet.members[member.name]
    assert again is not member and not again.running


def test_an_engine_that_stays_keeps_what_it_is_at() -> None:
    fleet = fleet_of(2)
    busy = send(fleet, "a", ONE)
    fleet.attach({name: member.engine for name, member in fleet.members.items()} | {"new": engine()}, 8)
    assert list(fleet.members[busy].running) == ["a"]
    assert {send(fleet, "b", OTHER), send(fleet, "c", OTHER)} == set(fleet.members) - {busy}
