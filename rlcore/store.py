"""Runs on disk: batches, reports, and the ledger of finished stages.

    runs/<run>/
      config.yaml                            the resolved configuration
      ledger.jsonl                           one line per finished stage
      iterations/000012/rollouts.parquet …   what each stage of iteration 12 put out
      checkpoints/000010/                    after iteration 10

A file is written under a temporary name, synced, and renamed: it is there whole or not at all.
The run may lie at any fsspec URL; object stores publish a file atomically by themselves.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import os
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import IO, Any, TypeVar

import fsspec
import polars as pl
from fsspec.implementations.local import LocalFileSystem
from pydantic import BaseModel, ConfigDict, ValidationError

from rlcore.batches import SCHEMAS, Batch, validate


class StoreError(RuntimeError):
    """A file of the run is missing, damaged, or cannot be written."""


class LockTimeout(StoreError):
    """Another process did not let go of a lock of the run in time."""


class Report(BaseModel):
    """What a stage puts out that is not a table; kept as JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)


R = TypeVar("R", bound=Report)

RUN_ID_FILE = "run-id"

LOCK_SECONDS = 60.0
"""How long a lock is waited for that is held for milliseconds at a time."""
LOCK_POLL_SECONDS = 0.02


class BatchRef(BaseModel):
    """A stage's output, by name: all that Prefect and Ray carry of it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    """Relative to the run directory."""
    schema_name: str
    rows: int
    sha256: str


class LedgerEntry(BaseModel):
    """One finished stage."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    iteration: int
    stage: str
    identity: str
    """sha256 of iteration, stage, input digests and the configuration that the stage reads."""
    inputs: dict[str, BatchRef]
    output: BatchRef
    policy_version: int
    """Optimizer updates behind the policy when the stage was done."""
    started_at: float
    """Unix time, seconds."""
    finished_at: float
    seconds: float
    """Wall time of the stage, reading and writing included."""
    engine_seconds: float
    """Of those, waiting for an engine, the trainer, or the graders."""


class RunStore:
    """The directory of one run. Cheap to make, safe to pickle."""

    def __init__(self, url: str) -> None:
        self.url = url if "://" in url else str(Path(url).expanduser().resolve())

    def __reduce__(self) -> tuple[type[RunStore], tuple[str]]:
        return RunStore, (self.url,)

    @cached_property
    def _filesystem(self) -> tuple[fsspec.AbstractFileSystem, str]:
        filesystem, root = fsspec.core.url_to_fs(self.url)
        return filesystem, root.rstrip("/")

    @property
    def local_path(self) -> Path | None:
        """The run directory, where it is on this machine's disk."""
        filesystem, root = self._filesystem
        return Path(root) if isinstance(filesystem, LocalFileSystem) else None

    def assign_run_id(self) -> None:
        """Give the run its id, unless it has one."""
        if not self.exists(RUN_ID_FILE):
            self.write_bytes(RUN_ID_FILE, uuid.uuid4().hex[:16].encode())

    @cached_property
    def run_id(self) -> str:
        """The same for as long as the run directory exists, and another for every run, of whatever name.

        Raises:
            StoreError: the run has none yet.
        """
        return self.read_bytes(RUN_ID_FILE).decode()

    @property
    def directory(self) -> Path:
        """The run directory, for what only a file system can hold: checkpoints, logs, TensorBoard, W&B.

        Raises:
            StoreError: the run is not on this machine's disk.
        """
        if self.local_path is None:
            raise StoreError(f"{self.url} is not on a file system: train with runs_dir on a disk or a mounted volume")
        return self.local_path

    def exists(self, path: str) -> bool:
        filesystem, root = self._filesystem
        return bool(filesystem.exists(f"{root}/{path}"))

    def read_bytes(self, path: str) -> bytes:
        """
        Raises:
            StoreError: the file is not there.
        """
        filesystem, root = self._filesystem
        try:
            return bytes(filesystem.cat_file(f"{root}/{path}"))
        except FileNotFoundError:
            raise StoreError(f"{self.url}/{path} is not there") from None

    def write_bytes(self, path: str, content: bytes) -> None:
        """Publish a file atomically.

        Raises:
            StoreError: no space is left, or it cannot be written there. What was there before is as it was.
        """
        filesystem, root = self._filesystem
        target = f"{root}/{path}"
        with self.writing(path):
            filesystem.makedirs(target.rpartition("/")[0], exist_ok=True)
            if isinstance(filesystem, LocalFileSystem):
                _replace_file(Path(target), content)
            else:
                filesystem.pipe_file(target, content)

    def append_line(self, path: str, line: str, *, sync: bool = True) -> None:
        """Add one line to a text file. Half a line left by a crash is cut off first.

        On a file system, processes that append at the same time wait for each other.

        Args:
            sync: it outlives the machine when this returns; else this process, but perhaps not the machine.

        Raises:
            StoreError: no space is left, or it cannot be written there. The lines before are as they were.
        """
        if self.local_path is None:
            before = self.read_bytes(path) if self.exists(path) else b""
            self.write_bytes(path, before[: before.rfind(b"\n") + 1] + line.encode() + b"\n")
            return
        target = self.local_path / path
        with self.writing(path):
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(target, "ab+", buffering=0) as file:
                _lock(file, LOCK_SECONDS)
                file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
                if file.read(1) not in (b"", b"\n"):
                    file.seek(0)
                    file.truncate(file.read().rfind(b"\n") + 1)
                written = file.write(content := line.encode() + b"\n")
                if written < len(content):
                    raise OSError(errno.ENOSPC, "half a line was written")
                if sync:
                    os.fsync(file.fileno())

    @contextmanager
    def lock(self, name: str, seconds: float = LOCK_SECONDS) -> Iterator[None]:
        """Held by one process at a time; released when its holder dies. The run must be on a file system.

        Raises:
            LockTimeout: it was not free within that time.
            StoreError: no space is left, or it cannot be written there.
        """
        path = f".{name}.lock"
        with ExitStack() as stack:
            with self.writing(path):
                self.directory.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(open(self.directory / path, "w"))
            _lock(file, seconds)
            yield

    @contextmanager
    def writing(self, path: str) -> Iterator[None]:
        """An error of the system in this block, which writes `path`, says what to do.

        Raises:
            StoreError: no space is left, or it cannot be written there.
        """
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreError(
                    f"no space left to write {self.url}/{path}: free some and retry; every finished stage is kept"
                ) from error
            if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise StoreError(
                    f"{self.url}/{path} cannot be written ({os.strerror(error.errno)}): make the directory writable "
                    "for this user, or put runs elsewhere (runs_dir=DIRECTORY)"
                ) from error
            raise

    # ---- batches and reports

    def write_batch(self, iteration: int, name: str, batch: pl.DataFrame, schema: type[Batch]) -> BatchRef:
        """Validate and publish `iterations/{iteration:06d}/{name}.parquet`."""
        validate(batch, schema)
        buffer = io.BytesIO()
        batch.write_parquet(buffer, compression="lz4")
        return self._publish(f"{iteration_path(iteration)}/{name}.parquet", buffer.getvalue(), schema, len(batch))

    def write_report(self, iteration: int, name: str, report: Report) -> BatchRef:
        """Publish `iterations/{iteration:06d}/{name}.json`."""
        content = report.model_dump_json(indent=2).encode()
        return self._publish(f"{iteration_path(iteration)}/{name}.json", content, type(report), 1)

    def _publish(self, path: str, content: bytes, schema: type, rows: int) -> BatchRef:
        self.write_bytes(path, content)
        digest = hashlib.sha256(content).hexdigest()
        return BatchRef(path=path, schema_name=schema.__name__, rows=rows, sha256=digest)

    def read_batch(self, ref: BatchRef) -> pl.DataFrame:
        """The batch, its digest and its schema checked.

        Raises:
            StoreError: the file is missing or is not what was written.
            BatchError: its content breaks its schema.
        """
        return validate(pl.read_parquet(io.BytesIO(self._verified(ref))), SCHEMAS[ref.schema_name])

    def read_report(self, ref: BatchRef, report: type[R]) -> R:
        """
        Raises:
            StoreError: the file is missing or is not what was written, or is no report of this version of the code.
        """
        try:
            return report.model_validate_json(self._verified(ref))
        except ValidationError as error:
            problems = [f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()]
            raise StoreError(
                f"{self.url}/{ref.path} is no {report.__name__} of this version of the code ({'; '.join(problems)}): "
                "use the version that wrote it"
            ) from None

    def damage(self, ref: BatchRef) -> str | None:
        """What became of the file, where it is not what was written."""
        try:
            self._verified(ref)
        except StoreError as error:
            return str(error)
        return None

    def is_intact(self, ref: BatchRef) -> bool:
        """Whether the file is there and is what was written."""
        return self.damage(ref) is None

    def _verified(self, ref: BatchRef) -> bytes:
        content = self.read_bytes(ref.path)
        digest = hashlib.sha256(content).hexdigest()
        if digest != ref.sha256:
            raise StoreError(f"{self.url}/{ref.path} is damaged: sha256 {digest[:12]}…, recorded {ref.sha256[:12]}…")
        return content

    # ---- ledger

    def ledger(self, iteration: int | None = None) -> list[LedgerEntry]:
        """All finished stages, or those of an iteration, oldest first. Half a last line, left by a crash, is not one.

        Raises:
            StoreError: a line that is not the last cannot be read.
        """
        beginning = b"" if iteration is None else b'{"iteration":%d,' % iteration
        lines = enumerate(self._ledger().split(b"\n")[:-1], start=1)
        return [self._entry(number, line) for number, line in lines if line.startswith(beginning)]

    def find(self, iteration: int, stage: str) -> LedgerEntry | None:
        """The newest entry of a stage of an iteration.

        Raises:
            StoreError: a line that names them cannot be read.
        """
        # A long run has megabytes of lines: only those that begin as this entry would are parsed.
        beginning = b'{"iteration":%d,"stage":%s,' % (iteration, json.dumps(stage).encode())
        content = self._ledger()
        end = len(content)
        while (start := content.rfind(beginning, 0, end)) >= 0:
            if start == 0 or content[start - 1 : start] == b"\n":
                number = content.count(b"\n", 0, start) + 1
                return self._entry(number, content[start : content.index(b"\n", start)])
            end = start
        return None

    def _ledger(self) -> bytes:
        """Its whole lines."""
        content = self.read_bytes("ledger.jsonl") if self.exists("ledger.jsonl") else b""
        return content if content.endswith(b"\n") else content[: content.rfind(b"\n") + 1]

    def _entry(self, number: int, line: bytes) -> LedgerEntry:
        try:
            return LedgerEntry.model_validate_json(line)
        except ValidationError as error:
            raise StoreError(f"{self.url}/ledger.jsonl:{number} is not a ledger entry: {error}") from None

    def record(self, entry: LedgerEntry) -> None:
        self.append_line("ledger.jsonl", entry.model_dump_json())


def iteration_path(iteration: int) -> str:
    return f"iterations/{iteration:06d}"


def _lock(file: IO[Any], seconds: float) -> None:
    """
    Raises:
        LockTimeout: it was not free within that time.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise LockTimeout(f"{file.name} was locked by another process for {seconds:g} s") from None
        time.sleep(LOCK_POLL_SECONDS)


def _replace_file(target: Path, content: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
