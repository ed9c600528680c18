"""Each update once, and in order."""

from __future__ import annotations

import json
import re

import pytest

from rlcore.trainer.updates import AppliedUpdates, UpdateRefused


def applied(*digests: str) -> AppliedUpdates:
    updates = AppliedUpdates()
    for iteration, digest in enumerate(digests, start=1):
        assert updates.report(iteration, digest) is None
        updates.begin(iteration)
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
    updates.begin(2)
    assert updates.version is None
    for iteration, digest in ((1, "a"), (2, "b")):
        with pytest.raises(UpdateRefused, match="update 2 broke off after it had changed weights"):
            updates.report(iteration, digest)


def test_dumped_and_loaded_it_knows_the_same_updates() -> None:
    loaded = AppliedUpdates.load(json.loads(json.dumps(applied("a", "b").dump())))
    assert loaded.version == 2
    assert loaded.report(2, "b") == {"loss": 2}
    assert AppliedUpdates.load(AppliedUpdates().dump()).version == 0
