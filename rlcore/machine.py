"""What this machine has and runs. Needs no torch."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from pathlib import Path

import psutil

HOST = "127.0.0.1"
"""Where whatever listens is bound."""
SET_PARENT_DEATH_SIGNAL = 1
"""Of prctl."""
CPU_INFO = Path("/proc/cpuinfo")
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
BFLOAT16_INSTRUCTIONS = {"avx512_bf16", "amx_bf16", "bf16"}
"""x86's two, and Arm's."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def engines() -> int:
    """Inference engines that share the cores best: two with half of them each decode more than one with all."""
    return min(2, cores())


def fastest_dtype() -> str:
    """`bfloat16` where there is an NVIDIA GPU or the CPU multiplies in it, else `float32`.

    Without such instructions bfloat16 is converted for every product, and slower than float32.
    """
    gpu = NVIDIA_DRIVER.exists()
    return "bfloat16" if gpu or BFLOAT16_INSTRUCTIONS & _cpu_flags() else "float32"


def started(pid: int) -> float:
    """Seconds from the machine's boot to the process's start: what tells it from a later process of its number.

    Not psutil's time of creation, which is another one once the clock was set.

    Raises:
        psutil.NoSuchProcess: there is none.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        raise psutil.NoSuchProcess(pid) from None
    # Field 22 of proc(5). The second one is the program's name in brackets, which may hold anything.
    return int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")


def _cpu_flags() -> set[str]:
    """Instruction sets of the first core; none where the system does not tell."""
    if not CPU_INFO.exists():
        return set()
    lines = CPU_INFO.read_text().splitlines()
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return set(flags.partition(":")[2].split())


def free_port() -> int:
    """One that nobody on this machine listens at, at this moment."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


def end_with_parent() -> None:
    """In a new child: SIGTERM when the parent dies, however it dies."""
    ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
