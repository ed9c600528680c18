"""A process's progress is seen from outside as it works, and costs it next to nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlcore import progress
from rlcore.progress import Sight, beat, counting, doing, progress_file, read_progress, report_to


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where this process reports to, as often as it does something."""
    monkeypatch.setattr(progress, "WRITE_SECONDS", 0.0)
    file = progress_file(tmp_path, "me")
    report_to(file)
    yield file
    report_to(None)


def said(file: Path) -> str:
    seen = read_progress(file)
    assert seen is not None and seen.pid == os.getpid()
    return str(seen).partition(", at ")[2]


def test_what_a_process_is_at_is_seen_while_it_is_at_it(file: Path) -> None:
    assert said(file) == "nothing"
    with doing("update"), counting("optimizer steps", 4) as steps:
        steps(1)
        with counting("micro-batches", 8) as micro_batches:
            micro_batches(3)
            assert said(file) == "update, 1/4 optimizer steps, 3/8 micro-batches"
            seen = read_progress(file)
            assert seen is not None and seen.counted == "1/4 optimizer steps, 3/8 micro-batches"
    assert said(file) == "nothing"


def test_a_count_without_an_end(file: Path) -> None:
    with counting("tokens") as tokens:
        tokens(3120)
        assert said(file) == "3120 tokens"


def test_things_done_at_the_same_time_end_in_any_order(file: Path) -> None:
    first, second = counting("first"), counting("second")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    beat()
    assert said(file) == "0 second"
    second.__exit__(None, None, None)
    assert said(file) == "nothing"


def test_the_file_is_written_when_something_begins_or_all_is_done_and_seldom_between(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "WRITE_SECONDS", 60.0)
    beat()
    with doing("update"), counting("micro-batches", 10) as done:
        for number in range(10):
            done(number)
        assert said(file) == "update, 0/10 micro-batches"
    seen = read_progress(file)
    assert seen is not None and seen.beats >= 10 and not seen.steps


def test_a_process_that_was_told_of_no_file_works_as_well() -> None:
    with doing("update"), counting("micro-batches", 2) as done:
        done(1)
        beat()


def test_work_goes_on_where_the_file_cannot_be_written(file: Path) -> None:
    file.unlink()
    file.parent.rmdir()
    with counting("micro-batches", 2) as done:
        done(1)
    assert read_progress(file) is None


def test_silence_is_counted_from_the_last_move(file: Path, tmp_path: Path) -> None:
    sight = Sight(tmp_path, {"me", "one that never came up"})
    assert not sight.look()
    time.sleep(0.05)
    before = sight.silent_seconds
    assert before >= 0.05
    beat()
    assert sight.look() and sight.silent_seconds < before
    assert not sight.look()
    assert sight.last["one that never came up"] is None
    sight.watch({"one that never came up"})
    beat()
    assert not sight.look()
