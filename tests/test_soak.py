"""The soak tells growth from noise, from restarts, and from caches that fill."""

from __future__ import annotations

import random

from tests.stack.chaos.soak import BYTES, SECONDS, Observed, growths, report

ITERATIONS, KILLED = 60, 29


def observed(leak: float, slower: float = 0.0) -> Observed:
    """An engine that grows by `leak` MB an iteration, and a trainer that is killed and another, larger one after it."""
    chance, noted = random.Random(0), Observed(kills=[(KILLED, "trainer")])
    for number in range(1, ITERATIONS + 1):
        noted.seconds[number] = 2.0 + slower * number + chance.random() / 10 + (30.0 if number == KILLED else 0.0)
        size = 100.0 + leak * number + chance.random()
        now = 30.0 * number
        noted.samples.append((number, now, "engine", 1, size, 20))
        again = number > KILLED
        noted.samples.append((number, now, "trainer", 2 + again, 100.0 + 50.0 * again + chance.random(), 20))
    return noted


def test_what_nothing_happened_to_does_not_grow_and_a_restart_is_no_growth() -> None:
    assert report(observed(leak=0.0), updates=ITERATIONS)


def test_a_leak_is_found_where_it_is() -> None:
    noted = observed(leak=0.2)
    found = growths(noted)
    assert abs(found[BYTES, "engine"].per_100 - 20.0) < 1.0
    assert abs(found[BYTES, "trainer"].per_100) < 3.0
    assert not report(noted, updates=ITERATIONS)


def test_iterations_that_take_longer_and_longer_are_growth() -> None:
    noted = observed(leak=0.0, slower=0.01)
    assert abs(growths(noted)[SECONDS, "all"].per_100 - 1.0) < 0.2
    assert not report(noted, updates=ITERATIONS)


def test_a_lost_update_is_no_success() -> None:
    assert not report(observed(leak=0.0), updates=ITERATIONS - 1)


def test_what_fills_for_a_quarter_of_an_hour_is_measured_after_it() -> None:
    noted = observed(leak=0.0)
    for number in range(1, ITERATIONS + 1):
        now = 30.0 * number
        noted.samples.append((number, now, "prefect-server", 5, 200.0 + min(now, 900.0) / 10, 20))
    assert report(noted, updates=ITERATIONS)
    noted.samples = [
        (*row[:4], row[4] + (row[0] if row[2] == "prefect-server" else 0), row[5]) for row in noted.samples
    ]
    assert not report(noted, updates=ITERATIONS)
