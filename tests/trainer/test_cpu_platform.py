"""The CPU platform of Megatron-Core."""

from __future__ import annotations

import pytest
import torch

from rlcore.trainer import cpu_platform


def test_another_version_of_megatron_is_refused_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(cpu_platform, "_installed", False)
    monkeypatch.setattr(cpu_platform, "MEGATRON_VERSION", "0.0.1")
    current_device = torch.cuda.current_device
    with pytest.raises(cpu_platform.UnsupportedMegatron, match=r"made for 0\.0\.1: pip install megatron-core==0\.0\.1"):
        cpu_platform.install()
    assert torch.cuda.current_device is current_device


def test_nothing_is_replaced_where_cuda_is_present(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cpu_platform, "_installed", False)
    tensor_type = torch.Tensor.type
    cpu_platform.install()
    assert torch.Tensor.type is tensor_type


@pytest.mark.skipif(torch.cuda.is_available(), reason="the CPU platform is for machines without CUDA")
def test_installing_twice_is_installing_once() -> None:
    cpu_platform.install()
    tensor_type = torch.Tensor.type
    cpu_platform.install()
    assert torch.Tensor.type is tensor_type


@pytest.mark.skipif(torch.cuda.is_available(), reason="the CPU platform is for machines without CUDA")
def test_only_megatron_hears_of_cuda_tensors() -> None:
    cpu_platform.install()
    assert torch.zeros(1).type() == "torch.FloatTensor"
    assert torch.zeros(1).type(torch.float64).dtype == torch.float64
