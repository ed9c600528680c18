"""Weights arrive in another process as they were written, or not at all."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from rlcore.weights.bucket import Bucket, weights_sha256
from rlcore.weights.shared_memory import (
    SharedMemory,
    WeightsDamaged,
    in_buckets,
    place_of,
    places_in_file,
    read_bucket,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64)


@st.composite
def models(draw: st.DrawFn) -> dict[str, Tensor]:
    """Up to twelve tensors of any dtype and up to three dimensions, some not contiguous."""
    tensors = {}
    for number in range(draw(st.integers(1, 12))):
        shape = draw(st.lists(st.integers(1, 9), max_size=3))
        tensor = torch.randn(shape, generator=torch.Generator().manual_seed(number)).mul(100)
        tensor = tensor.to(draw(st.sampled_from(DTYPES)))
        tensors[f"layers.{number}"] = tensor.mT if len(shape) >= 2 and draw(st.booleans()) else tensor
    return tensors


@given(models(), st.integers(1, 3000))
def test_what_is_read_is_what_was_written(model: dict[str, Tensor], capacity: int) -> None:
    memory = SharedMemory()
    read: dict[str, Tensor] = {}
    for tensors in in_buckets(model.items(), capacity):
        assert len(tensors) == 1 or sum(tensor.nbytes for _, tensor in tensors) <= capacity
        bucket = Bucket.from_dict(memory.write(tensors).to_dict())
        assert bucket.bytes == sum(tensor.nbytes for _, tensor in tensors)
        read |= {name: tensor.clone() for name, tensor in read_bucket(bucket)}
    assert list(read) == list(model)
    for name, tensor in model.items():
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(read[name], tensor)


@given(models(), st.integers(1, 3000), st.integers(1, 3000))
def test_the_digest_is_of_the_tensors_whatever_the_buckets(model: dict[str, Tensor], one: int, other: int) -> None:
    def digest(capacity: int, items: list[tuple[str, Tensor]]) -> str:
        memory = SharedMemory()
        buckets = [memory.write(tensors) for tensors in in_buckets(items, capacity)]
        return weights_sha256(tensor for bucket in buckets for tensor in bucket.tensors)

    items = list(model.items())
    assert digest(one, items) == digest(other, items[::-1])
    name, tensor = items[0]
    assert digest(one, items) != digest(one, [(name, tensor + 1), *items[1:]])
    assert digest(one, items) != digest(one, [(f"{name}.weight", tensor), *items[1:]])


def test_the_digest_of_a_file_is_that_of_the_buckets(tmp_path: Path) -> None:
    weights = {"a": torch.randn(3, 5), "b": torch.randn(7).bfloat16()}
    save_file(weights, tmp_path / "model.safetensors")
    bucket = SharedMemory().write([*weights.items()])
    assert weights_sha256(places_in_file(tmp_path / "model.safetensors")) == weights_sha256(bucket.tensors)


def test_a_bucket_stays_while_the_next_is_written_and_no_longer() -> None:
    memory = SharedMemory()
    first = memory.write([("weight", torch.zeros(100))])
    memory.write([("weight", torch.ones(100))])
    [(_, read)] = read_bucket(first)
    assert torch.equal(read, torch.zeros(100))
    memory.write([("weight", torch.full((100,), 2.0))])
    with pytest.raises(WeightsDamaged, match=r"weight in /proc/\d+/fd/\d+ was damaged on its way: its checksum is"):
        list(read_bucket(first))


def test_the_memory_grows_with_the_largest_bucket_and_is_used_again() -> None:
    memory = SharedMemory()
    small = [memory.write([("weight", torch.ones(8))]) for _ in range(2)]
    large = [memory.write([("weight", torch.arange(10_000.0))]) for _ in range(2)]
    again = [memory.write([("weight", torch.ones(8))]) for _ in range(2)]
    assert [bucket.path for bucket in small] == [bucket.path for bucket in large] == [bucket.path for bucket in again]
    [(_, read)] = read_bucket(again[1])
    assert torch.equal(read, torch.ones(8))


WRITER = """
import sys, torch
from rlcore.weights.shared_memory import SharedMemory
memory = SharedMemory()
print(memory.write([("weight", torch.arange(5.0))]).path, flush=True)
sys.stdin.read()
"""


def test_another_process_reads_it_until_the_writer_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        path = writer.stdout.readline().strip()
        bucket = Bucket(path, (place_of("weight", torch.arange(5.0)),))
        [(_, read)] = read_bucket(bucket)
        assert torch.equal(read, torch.arange(5.0))
        writer.kill()
        writer.wait()
        # Who has it mapped keeps it.
        assert torch.equal(read, torch.arange(5.0))
        with pytest.raises(FileNotFoundError, match=path):
            list(read_bucket(bucket))


def test_an_empty_bucket_needs_no_memory() -> None:
    assert list(read_bucket(replace(SharedMemory().write([]), path="nowhere"))) == []
