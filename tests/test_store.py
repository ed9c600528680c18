"""The run on disk: what is written is whole, what is read is what was written, and errors say what to do."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest

from rlcore.batches import BatchError, LogprobBatch
from rlcore.reports import SyncReport
from rlcore.store import BatchRef, LockTimeout, RunStore, StoreError
from tests.disks import fill, make_read_only, small_disk
from tests.entries import ledger_entry


def logprob_batch(*rows: list[float]) -> pl.DataFrame:
    return pl.DataFrame(
        {"sample_id": [f"s{index}" for index in range(len(rows))], "logprobs": list(rows)},
        schema={"sample_id": pl.String, "logprobs": pl.List(pl.Float32)},
    )


@pytest.fixture(params=["local", "object store"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> RunStore:
    return RunStore(str(tmp_path / "run") if request.param == "local" else f"memory://{tmp_path.name}/run")


def test_a_batch_is_read_back_as_it_was_written(store: RunStore) -> None:
    batch = logprob_batch([-0.5, -1.0], [])
    ref = store.write_batch(12, "ref_logprobs", batch, LogprobBatch)
    assert ref.path == "iterations/000012/ref_logprobs.parquet"
    assert ref.rows == 2
    assert store.read_batch(ref).equals(batch)


def test_a_report_is_read_back_as_it_was_written(store: RunStore) -> None:
    report = SyncReport(
        policy_version=3,
        weights_sha256="ab",
        bytes=10,
        seconds=0.3,
        probe_tokens=5,
        probe_gap_mean=0.01,
        probe_gap_max=0.02,
    )
    assert store.read_report(store.write_report(3, "sync", report), SyncReport) == report


def test_a_batch_that_breaks_its_schema_is_not_written(store: RunStore) -> None:
    with pytest.raises(BatchError, match=r"LogprobBatch\.logprobs.*finite.*s0"):
        store.write_batch(1, "bad", logprob_batch([float("nan")]), LogprobBatch)
    assert not store.exists("iterations/000001/bad.parquet")


def test_a_flipped_byte_is_refused_by_name(store: RunStore) -> None:
    ref = store.write_batch(1, "x", logprob_batch([-0.5]), LogprobBatch)
    content = bytearray(store.read_bytes(ref.path))
    content[len(content) // 2] ^= 1
    store.write_bytes(ref.path, bytes(content))
    assert not store.is_intact(ref)
    with pytest.raises(StoreError, match=r"iterations/000001/x\.parquet is damaged: sha256 .*, recorded "):
        store.read_batch(ref)


def test_a_missing_file_is_refused_by_name(store: RunStore) -> None:
    ref = BatchRef(path="iterations/000001/gone.parquet", schema_name="LogprobBatch", rows=1, sha256="0")
    with pytest.raises(StoreError, match=r"gone\.parquet is not there"):
        store.read_batch(ref)


def test_the_ledger_gives_back_its_entries_and_finds_the_newest(store: RunStore) -> None:
    first = store.write_batch(1, "x", logprob_batch([-0.5]), LogprobBatch)
    second = store.write_batch(1, "y", logprob_batch([-0.7]), LogprobBatch)
    entries = [
        ledger_entry(1, "ref_logprob", first),
        ledger_entry(1, "ref_logprob", second),
        ledger_entry(2, "ref_logprob", first),
    ]
    for one in entries:
        store.record(one)
    assert store.ledger() == entries
    assert store.find(1, "ref_logprob") == entries[1]
    assert store.find(3, "ref_logprob") is None


def test_half_a_last_ledger_line_is_not_an_entry_and_the_next_one_is_whole(tmp_path: Path) -> None:
    store = RunStore(str(tmp_path))
    ref = store.write_batch(1, "x", logprob_batch([-0.5]), LogprobBatch)
    store.record(ledger_entry(1, "generate", ref))
    with open(tmp_path / "ledger.jsonl", "a") as ledger:
        ledger.write('{"iteration": 1, "sta')
    assert [one.stage for one in store.ledger()] == ["generate"]
    store.record(ledger_entry(1, "reward", ref))
    assert [one.stage for one in store.ledger()] == ["generate", "reward"]


def test_a_broken_line_inside_the_ledger_is_an_error_with_its_number(tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").write_text("nonsense\n")
    with pytest.raises(StoreError, match=r"ledger\.jsonl:1 is not a ledger entry"):
        RunStore(str(tmp_path)).ledger()


def test_a_reader_never_sees_a_half_written_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RunStore(str(tmp_path))
    store.write_bytes("file", b"before")

    def crash(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rlcore.store.os.fsync", crash)
    with pytest.raises(KeyboardInterrupt):
        store.write_bytes("file", b"after")
    assert store.read_bytes("file") == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path, kibibytes=64):
        yield tmp_path


def test_a_full_disk_is_named_and_nothing_recorded_is_lost(disk: Path) -> None:
    store = RunStore(str(disk / "run"))
    ref = store.write_batch(1, "x", logprob_batch([-0.5]), LogprobBatch)
    store.record(ledger_entry(1, "generate", ref))
    with pytest.raises(StoreError, match=r"no space left to write .*big\.bin: free some and retry"):
        store.write_bytes("big.bin", bytes(1 << 20))
    assert store.read_batch(ref).equals(logprob_batch([-0.5]))
    assert [one.stage for one in store.ledger()] == ["generate"]
    assert not store.exists("big.bin")

    with pytest.raises(StoreError, match=r"no space left to write .*ledger\.jsonl"):
        store.append_line("ledger.jsonl", "x" * (1 << 20))
    store.record(ledger_entry(1, "reward", ref))
    assert [one.stage for one in store.ledger()] == ["generate", "reward"]


def test_where_no_space_is_left_every_kind_of_write_is_refused_and_done_once_there_is(disk: Path) -> None:
    store = RunStore(str(disk / "run"))
    before = store.write_batch(1, "x", logprob_batch([-0.5]), LogprobBatch)
    store.record(ledger_entry(1, "generate", before))
    # A page and more: what is left of the file's last page is no help.
    entry = ledger_entry(1, "reward", before).model_dump_json() + " " * 8192
    writes: dict[str, Callable[[], object]] = {
        "y.parquet": lambda: store.write_batch(2, "y", logprob_batch([-0.7]), LogprobBatch),
        "ledger.jsonl": lambda: store.append_line("ledger.jsonl", entry),
        "metrics.jsonl": lambda: store.append_line("metrics.jsonl", json.dumps({"iteration": 1})),
        "owner.json": lambda: store.write_bytes("owner.json", b"{}"),
    }
    filler = fill(disk)
    for name, write in writes.items():
        with pytest.raises(StoreError, match=rf"no space left to write .*{name}: free some and retry"):
            write()
    assert [one.stage for one in store.ledger()] == ["generate"] and store.is_intact(before)
    filler.unlink()
    for write in writes.values():
        write()
    assert [one.stage for one in store.ledger()] == ["generate", "reward"]
    assert store.read_bytes("metrics.jsonl") == b'{"iteration": 1}\n'


def test_a_read_only_directory_is_named_with_what_to_do(disk: Path) -> None:
    store = RunStore(str(disk / "run"))
    before = store.write_batch(1, "x", logprob_batch([-0.5]), LogprobBatch)
    store.record(ledger_entry(1, "generate", before))
    make_read_only(disk)
    says = r"/run/.* cannot be written \(Read-only file system\): make the directory writable .*runs_dir=DIRECTORY"
    with pytest.raises(StoreError, match=says):
        store.write_batch(1, "y", logprob_batch([-0.5]), LogprobBatch)
    with pytest.raises(StoreError, match=says):
        store.record(ledger_entry(1, "reward", before))
    with pytest.raises(StoreError, match=says), store.lock("owner"):
        pass
    assert store.is_intact(before) and [one.stage for one in store.ledger()] == ["generate"]


def test_a_truncated_batch_is_not_intact_and_says_so(store: RunStore) -> None:
    ref = store.write_batch(1, "x", logprob_batch([-0.5]), LogprobBatch)
    store.write_bytes(ref.path, store.read_bytes(ref.path)[:-10])
    assert "iterations/000001/x.parquet is damaged" in (store.damage(ref) or "")


def append(url: str, name: str, count: int) -> None:
    store = RunStore(url)
    for number in range(count):
        store.record(ledger_entry(number, name))


def test_processes_that_record_at_the_same_time_lose_no_line(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=append, args=(str(tmp_path), name, 100)) for name in ("evaluate", "checkpoint")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    stages = [one.stage for one in RunStore(str(tmp_path)).ledger()]
    assert stages.count("evaluate") == stages.count("checkpoint") == 100


def test_a_run_has_one_id_and_another_run_of_the_name_another(tmp_path: Path) -> None:
    def opened() -> RunStore:
        store = RunStore(str(tmp_path / "run"))
        store.assign_run_id()
        return store

    first = opened().run_id
    assert opened().run_id == first
    (tmp_path / "run" / "run-id").unlink()
    assert opened().run_id != first


def test_a_lock_that_nobody_lets_go_of_is_waited_for_only_so_long(tmp_path: Path) -> None:
    store = RunStore(str(tmp_path))
    refused = pytest.raises(LockTimeout, match=r"\.trainer\.lock was locked by another process for 0\.1 s")
    with store.lock("trainer"), refused, store.lock("trainer", seconds=0.1):
        pass
    with store.lock("trainer", seconds=0.1):
        pass
