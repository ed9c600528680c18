"""The surroundings of vLLM's processes: environment variables, and where their output goes."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STEADY_HEAP = {
    # Buffers of some megabytes come and go with every batch. In the heap they leave holes, and it grows for as long
    # as the engine runs; mapped, they are gone when they are freed.
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(8 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(16 << 20),
    # oneDNN keeps the code it made for each shape, and every batch has another number of tokens.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32",
}
"""On the CPU, where weights, keys and values share the machine's memory with the trainer."""


def engine_environment(threads: int, *, cuda: bool, logged: bool, scratch: str) -> dict[str, str]:
    """Environment variables of the engine's processes. `scratch` is a directory for their sockets."""
    environment = {
        "OMP_NUM_THREADS": str(threads),
        # Idle threads sleep: two OpenMP processes that spin on the same cores slow each other down severalfold.
        "OMP_WAIT_POLICY": "PASSIVE",
        "HF_HUB_OFFLINE": "1",
        "VLLM_RPC_BASE_PATH": scratch,
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "INFO" if logged else "WARNING",
    }
    if not cuda:
        # The layers run eagerly on the CPU; what is left (the rank of the sampled token) would be compiled by a C++
        # compiler, if there is one, during the first request.
        environment["TORCHDYNAMO_DISABLE"] = "1"
        # A file that torch.distributed meets over. (On a GPU caches of compiled kernels that should stay go here too.)
        environment["TMPDIR"] = scratch
        environment |= STEADY_HEAP
    return environment


@contextmanager
def environment_variables(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables for processes started inside; afterwards all variables are as they were before."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        for name, value in before.items():
            if os.environ.get(name) != value:
                os.environ[name] = value


@contextmanager
def output_to(path: Path | None) -> Iterator[None]:
    """Standard output and error of this process appended to a file; processes started inside keep writing there.

    None leaves them where they are.
    """
    if path is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    terminal = [os.dup(1), os.dup(2)]
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        _point_output_at(file, file)
        yield
    finally:
        _point_output_at(*terminal)
        for descriptor in (file, *terminal):
            os.close(descriptor)


def _point_output_at(out: int, error: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(out, 1)
    os.dup2(error, 2)


def log_to(path: Path) -> None:
    """vLLM's own messages of this process go to the file from now on."""
    logger = logging.getLogger("vllm")
    formatter = logger.handlers[0].formatter if logger.handlers else None
    for handler in logger.handlers:
        handler.close()
    handler = logging.FileHandler(path)
    handler.setFormatter(formatter)
    logger.handlers = [handler]


def log_size(path: Path | None) -> int:
    """Bytes that a log has."""
    return path.stat().st_size if path is not None and path.is_file() else 0


def last_error(path: Path, start: int) -> str:
    """The last exception that a log names after its first `start` bytes, as `Type: message`, or nothing."""
    with path.open("rb") as file:
        file.seek(start)
        text = file.read().decode(errors="replace")
    named = re.findall(r"\b((?!EngineDeadError)\w*Error: .+)", text)
    return named[-1].strip() if named else ""
