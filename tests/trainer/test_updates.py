"""Each update once, and in order."""

from __future__ import annotations

import json
import re

import pytest

from rlcore.trainer.updates import AppliedUpdates, NonFiniteGradient, UpdateRefused

INF = float("inf")


def applied(*digests: str) -> AppliedUpdates:
    updates = AppliedUpdates()
    for iteration, digest in enumerate(digests, start=1):
        assert updates.report(iteration, digest) is None
        updates.start()
        updates.step(iteration)
        updates.record(iteration, digest, {"loss": iteration})
    return updates


def test_an_update_that_was_applied_has_its_report() -> None:
    updates = applied("a", "b")
    assert updates.version == 2
    assert updates.report(1, "a") == {"loss": 1}
    assert updates.report(3, "c") is None


@pytest.mark.parametrize(
    ("iteration", "digest", "message"),
    [
        (1, "b", "update 1 was applied with batch a, not b"),
        (3, "c", "update 3 is out of order: the next one is 2"),
        (0, "c", "update 0 is out of order: the next one is 2"),
    ],
)
def test_another_batch_or_another_order_is_refused(iteration: int, digest: str, message: str) -> None:
    with pytest.raises(UpdateRefused, match=re.escape(message)):
        applied("a").report(iteration, digest)


def test_after_an_update_that_broke_off_there_is_no_version_and_no_other_update() -> None:
    updates = applied("a")
    updates.start()
    updates.step(2)
    assert updates.version is None
    for iteration, digest in ((1, "a"), (2, "b")):
        with pytest.raises(UpdateRefused, match="update 2 broke off after it had changed weights"):
            updates.report(iteration, digest)


def test_dumped_and_loaded_it_knows_the_same_updates() -> None:
    loaded = AppliedUpdates.load(json.loads(json.dumps(applied("a", "b").dump())))
    assert loaded.version == 2
    assert loaded.report(2, "b") == {"loss": 2}
    assert AppliedUpdates.load(AppliedUpdates().dump()).version == 0


def skip_only_step(updates: AppliedUpdates, iteration: int) -> None:
    updates.start()
    updates.skip(iteration, INF)
    updates.record(iteration, f"{iteration}", {})


def test_the_third_step_in_a_row_that_is_skipped_is_an_error_also_over_updates_and_a_restart() -> None:
    updates = applied("1")
    skip_only_step(updates, 2)
    skip_only_step(updates, 3)
    loaded = AppliedUpdates.load(json.loads(json.dumps(updates.dump())))
    for restored in (updates, loaded):
        # And again, where the update is tried again.
        for _ in range(2):
            restored.start()
            with pytest.raises(NonFiniteGradient, match=r"update 4: the gradients of 3 optimizer steps in a row.*inf"):
                restored.skip(4, INF)
            assert restored.version == 3


def test_a_step_that_is_taken_ends_the_row() -> None:
    updates = AppliedUpdates()
    updates.start()
    for _ in range(2):
        updates.skip(1, INF)
    updates.step(1)
    for _ in range(2):
        updates.skip(1, INF)
    updates.record(1, "1", {})
    with pytest.raises(NonFiniteGradient):
        skip_only_step(updates, 2)


def test_what_an_attempt_that_broke_off_skipped_does_not_count() -> None:
    updates = applied("1")
    for _ in range(4):
        updates.start()
        updates.skip(2, INF)
        updates.skip(2, INF)
    assert updates.version == 1
