"""One process at a time works on a run, and a dead one keeps nobody from it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from rlcore import ownership
from rlcore.ownership import Owner, RunBusy, owned, owner
from rlcore.store import RunStore
from tests.disks import fill, small_disk

HOLD = """
import sys, time
from rlcore.ownership import RunBusy, owned
from rlcore.store import RunStore
try:
    with owned(RunStore(sys.argv[1])):
        print("owns", flush=True)
        time.sleep(float(sys.argv[2]))
except RunBusy as busy:
    print(busy, flush=True)
"""


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(str(tmp_path))


@pytest.fixture
def holders(store: RunStore) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes to be ended."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def hold(store: RunStore, holders: list[subprocess.Popen[str]], seconds: float = 60.0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD, store.url, str(seconds)]
    holders.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    return holders[-1]


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def elsewhere(store: RunStore, beat: int = 0) -> Owner:
    """An owner on another machine."""
    other = Owner.here().model_copy(update={"id": "other", "host": "another-machine", "beat": beat})
    store.write_bytes(ownership.OWNER_FILE, other.model_dump_json().encode())
    return other


def test_a_second_process_is_refused_with_the_first_ones_name(
    store: RunStore, holders: list[subprocess.Popen[str]]
) -> None:
    process = hold(store, holders)
    assert first_line(process) == "owns"
    with (
        pytest.raises(RunBusy, match=rf"is being worked on by process {process.pid} on .*, since .* UTC"),
        owned(store),
    ):
        pass
    assert owner(store) is not None


def test_a_killed_owner_is_replaced_at_once(store: RunStore, holders: list[subprocess.Popen[str]]) -> None:
    process = hold(store, holders)
    assert first_line(process) == "owns"
    process.kill()
    started = time.monotonic()
    # Not waited for: a zombie owns nothing.
    time.sleep(0.2)
    with owned(store):
        assert time.monotonic() - started < 2.0
        now = owner(store)
        assert now is not None and now.pid == os.getpid()
    assert owner(store) is None


def test_of_many_that_start_together_one_owns_the_run(store: RunStore, holders: list[subprocess.Popen[str]]) -> None:
    for _ in range(4):
        hold(store, holders, seconds=30.0)
    lines = [first_line(process) for process in holders]
    assert lines.count("owns") == 1
    assert all("is being worked on by process" in line for line in lines if line != "owns")


def test_a_flow_that_another_calls_works_on_the_same_run(store: RunStore) -> None:
    with owned(store):
        with owned(store):
            pass
        assert owner(store) is not None
    assert owner(store) is None


def test_an_owner_that_ends_with_an_error_leaves_the_run_free(store: RunStore) -> None:
    with pytest.raises(ZeroDivisionError), owned(store):
        raise ZeroDivisionError
    with owned(store):
        pass


def test_an_owner_elsewhere_without_a_beat_is_replaced(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ownership, "SILENCE_SECONDS", 0.3)
    elsewhere(store)
    with owned(store):
        now = owner(store)
        assert now is not None and now.pid == os.getpid()
    assert "was left by process" in caplog.text


def test_an_owner_elsewhere_whose_beat_goes_on_is_not_whatever_its_clock_says(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "SILENCE_SECONDS", 10.0)
    elsewhere(store)
    beat = threading.Timer(0.3, elsewhere, (store, 1))
    beat.start()
    with pytest.raises(RunBusy, match="on another-machine"), owned(store):
        pass
    beat.join()


def test_half_an_owner_owns_nothing(store: RunStore) -> None:
    store.write_bytes(ownership.OWNER_FILE, b'{"id": "x", "ho')
    with owned(store):
        pass


def test_an_owner_beats_and_one_that_was_replaced_is_interrupted(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "BEAT_SECONDS", 0.05)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), owned(store):
            deadline = time.monotonic() + 5.0
            while (now := owner(store)) is not None and now.beat < 2 and time.monotonic() < deadline:
                time.sleep(0.02)
            assert now is not None and now.beat >= 2
            elsewhere(store)
            time.sleep(5.0)
    finally:
        signal.signal(signal.SIGINT, before)
    # What the other process wrote is its own.
    now = owner(store)
    assert now is not None and now.host == "another-machine"


def test_one_that_waits_gets_the_run_when_its_owner_ends(
    store: RunStore, holders: list[subprocess.Popen[str]], caplog: pytest.LogCaptureFixture
) -> None:
    holder = hold(store, holders, seconds=1.5)
    assert first_line(holder) == "owns"
    with caplog.at_level("INFO", logger="rlcore.ownership"), owned(store, wait=True):
        now = owner(store)
        assert now is not None and now.pid == os.getpid()
    assert [record.message for record in caplog.records if f"process {holder.pid} on" in record.message]
    assert sum(record.message.startswith("waiting: ") for record in caplog.records) == 1


def test_one_that_waits_goes_on_when_its_owner_is_killed(store: RunStore, holders: list[subprocess.Popen[str]]) -> None:
    holder = hold(store, holders)
    assert first_line(holder) == "owns"
    threading.Timer(0.5, holder.kill).start()
    started = time.monotonic()
    with owned(store, wait=True):
        assert time.monotonic() - started < 10


@pytest.mark.parametrize("seconds", [-86400.0, 86400.0])
def test_an_owner_is_alive_and_a_dead_one_dead_whatever_the_clock_was_set_to(
    store: RunStore, holders: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """Linux has no time of creation but the time since boot: what is told in hours and minutes moves with the clock."""
    holder = hold(store, holders)
    assert first_line(holder) == "owns"
    now, boot = time.time, psutil._pslinux.boot_time
    monkeypatch.setattr(time, "time", lambda: now() + seconds)
    monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: boot() + seconds)
    with pytest.raises(RunBusy, match=f"by process {holder.pid} on"), owned(store):
        pass
    holder.kill()
    holder.wait()
    with owned(store):
        pass


def test_a_beat_that_finds_no_space_is_said_and_the_next_ones_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ownership, "BEAT_SECONDS", 0.05)
    with small_disk(tmp_path, kibibytes=64):
        store = RunStore(str(tmp_path))
        with owned(store):
            filler = fill(tmp_path)
            wait_until(lambda: "no space left to write" in caplog.text)
            filler.unlink()
            before = beat_of(store)
            wait_until(lambda: beat_of(store) > before)
        assert owner(store) is None


def beat_of(store: RunStore) -> int:
    now = owner(store)
    assert now is not None
    return now.beat


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
