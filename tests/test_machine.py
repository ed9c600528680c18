"""What a configuration asks of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcore import machine
from rlcore.compose import compose


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16 fma\n", "bfloat16"),
        ("processor : 0\nflags : fpu amx_bf16\nflags : fpu\n", "bfloat16"),
        ("Features\t: fp asimd bf16\n", "bfloat16"),
        ("flags\t\t: fpu avx2 avx512f\n", "float32"),
        ("", "float32"),
    ],
)
def test_a_cpu_without_bfloat16_computes_in_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, dtype: str
) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(machine, "NVIDIA_DRIVER", tmp_path / "no-driver")
    assert machine.fastest_dtype() == dtype
    assert compose("arithmetic").model.dtype == dtype


def test_a_gpu_computes_in_bfloat16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "version").write_text("NVRM version")
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "none")
    monkeypatch.setattr(machine, "NVIDIA_DRIVER", tmp_path / "version")
    assert machine.fastest_dtype() == "bfloat16"


def test_threads_are_the_cores_that_the_process_may_use() -> None:
    hardware = compose("arithmetic").hardware
    assert hardware.trainer_threads == machine.cores()
    assert hardware.engines * hardware.engine_threads <= machine.cores()
