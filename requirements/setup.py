"""Make `.venv` ready: check this machine, then install the locked packages and this project.

Runs under whatever `python3` there is, with the standard library only. Where `.venv` already holds
what the lock says, nothing is installed again; memory and disk for the run are looked at every time.

    python3 requirements/setup.py cpu|gpu
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
VENV = REPOSITORY / ".venv"
PYTHON_VERSION = "3.11"
PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"

GB = 10**9
MEMORY = 10 * GB
"""Most memory that the demo and the tests use at once."""
RUN_DISK = 8 * GB
"""What the demo leaves under runs/: mostly checkpoints of 2 GB each."""
INSTALL_DISK = {"cpu": 5 * GB, "gpu": 16 * GB}
"""Size of .venv."""
PIP_CACHE_DISK = 2 * GB
MODEL_DISK = GB
UNPACK_DISK = GB


class SetupError(Exception):
    """What is missing on this machine, and what would be right; one problem a line."""


def main(device: str) -> None:
    """Check, install, stamp.

    Raises:
        SetupError: a prerequisite is missing, or pip failed.
    """
    lock = REPOSITORY / "requirements" / f"{device}.txt"
    stamp = VENV / "installed"
    wanted = f"{device} {digest(lock, REPOSITORY / 'pyproject.toml')}"
    installed = stamp.read_text() if stamp.is_file() else ""
    if installed and installed.split()[0] != device:
        raise SetupError(f"{VENV} was made for {installed.split()[0]}, not for {device}: `make clean` removes it")
    problems = [*machine_problems(device), *memory_problems(available_memory())]
    python = find_python()
    if python is None:
        problems.append(
            f"Python {PYTHON_VERSION} with the modules venv and ensurepip is needed; {sys.executable} is "
            f"{platform.python_version()} and no other was found. Install python{PYTHON_VERSION} and "
            f"python{PYTHON_VERSION}-venv, or name an interpreter: make PYTHON=/path/to/python{PYTHON_VERSION}"
        )
    problems += disk_problems(disk_needs(device, fresh=installed != wanted))
    if problems:
        raise SetupError("\n".join(problems))
    if installed == wanted:
        return
    assert python is not None
    stamp.unlink(missing_ok=True)
    if not (VENV / "bin" / "python").exists():
        print(f"Making {VENV.name} with {python}", flush=True)
        subprocess.run([python, "-m", "venv", str(VENV)], check=True)
    install(lock)
    stamp.write_text(wanted)


def digest(*files: Path) -> str:
    """sha256 over the contents of the files."""
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def find_python() -> str | None:
    """An interpreter of the right version that can make virtual environments: .venv's own, this one, or one on PATH."""
    probe = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    for candidate in (str(VENV / "bin" / "python"), sys.executable, f"python{PYTHON_VERSION}"):
        found = shutil.which(candidate)
        if found is None:
            continue
        answer = subprocess.run([found, "-c", probe], capture_output=True, text=True, check=False)
        if answer.stdout.strip() == PYTHON_VERSION:
            return found
    return None


def machine_problems(device: str) -> list[str]:
    """What the locked wheels need of system, processor and driver."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return [f"Linux on x86_64 is needed; this is {platform.system()} on {platform.machine()}"]
    if device == "cpu" and "avx2" not in Path("/proc/cpuinfo").read_text().split():
        return ["a processor with AVX2 is needed for vLLM; /proc/cpuinfo does not list it"]
    if device == "gpu" and shutil.which("nvidia-smi") is None:
        return ["an NVIDIA driver is needed for DEVICE=gpu; there is no nvidia-smi. DEVICE=cpu works without"]
    return []


def available_memory() -> int:
    """Bytes this process could still use: what the kernel calls available, or what its cgroup leaves of that."""
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(meminfo["MemAvailable"].split()[0]) * 1024
    for directory, limit, used in (
        ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        group = Path(directory)
        if (group / limit).is_file() and (group / limit).read_text().strip() != "max":
            statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            in_use = int((group / used).read_text()) - int(statistics["inactive_file"])
            available = min(available, int((group / limit).read_text()) - in_use)
    return available


def memory_problems(available: int) -> list[str]:
    if available >= MEMORY:
        return []
    return [f"{MEMORY / GB:.0f} GB of available memory are needed; there are {available / GB:.1f} GB"]


def disk_needs(device: str, *, fresh: bool) -> dict[Path, int]:
    """Bytes that will be written, by directory."""
    needs = {REPOSITORY: RUN_DISK}
    if fresh:
        needs[REPOSITORY] += INSTALL_DISK[device]
        cache = Path.home() / ".cache"
        needs[Path(os.environ.get("RLVR_CACHE") or cache)] = MODEL_DISK
        needs[Path(os.environ.get("PIP_CACHE_DIR") or cache / "pip")] = PIP_CACHE_DISK
        needs[Path(tempfile.gettempdir())] = UNPACK_DISK
    return needs


def disk_problems(needs: dict[Path, int]) -> list[str]:
    """One line for each file system that has too little room for all that is written to it."""
    needed: dict[int, int] = {}
    free: dict[int, int] = {}
    directories: dict[int, list[str]] = {}
    for directory, size in needs.items():
        there = next(path for path in (directory, *directory.parents) if path.exists())
        device = there.stat().st_dev
        needed[device] = needed.get(device, 0) + size
        free[device] = shutil.disk_usage(there).free
        directories.setdefault(device, []).append(str(directory))
    return [
        f"{needed[device] / GB:.0f} GB of free disk are needed for {', '.join(directories[device])}; "
        f"there are {free[device] / GB:.1f} GB"
        for device in needed
        if free[device] < needed[device]
    ]


def install(lock: Path) -> None:
    """Install exactly the lock's packages, then this project in editable form, into .venv.

    Raises:
        SetupError: pip failed; with the end of what it said.
    """
    python, log = VENV / "bin" / "python", VENV / "pip.log"
    log.write_text("")
    requirements = [line for line in lock.read_text().splitlines() if line and not line.startswith("#")]
    print(f"Installing {len(requirements)} packages of {lock.relative_to(REPOSITORY)} (log: {log})", flush=True)
    install_torch(python, next(line for line in requirements if line.startswith("torch==")), log)
    pip_install(python, log, "-r", str(lock), packages=len(requirements))
    pip_install(python, log, "--no-build-isolation", "--editable", str(REPOSITORY))


def install_torch(python: Path, requirement: str, log: Path, cpu_index: str = PYTORCH_CPU_INDEX) -> None:
    """Install torch from the configured indexes, or, a CPU build that they do not have, from PyTorch's own."""
    try:
        pip_install(python, log, requirement)
    except SetupError:
        if not requirement.endswith("+cpu"):
            raise
        pip_install(python, log, "--index-url", cpu_index, requirement)


def pip_install(python: Path, log: Path, *arguments: str, packages: int = 0) -> None:
    """Run pip without dependency resolution; all it says goes to the log, its progress to the terminal."""
    # Modules are compiled when they are first imported: most of these packages' never are.
    command = [str(python), "-m", "pip", "install", "--no-deps", "--no-compile", "--no-input", "--progress-bar", "off"]
    begin = log.stat().st_size if log.exists() else 0
    fetched = announced = 0
    with log.open("a") as sink:
        process = subprocess.Popen(
            [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=REPOSITORY
        )
        assert process.stdout is not None
        for line in process.stdout:
            sink.write(line)
            fetched += line.startswith(("Collecting ", "Processing ", "Requirement already satisfied"))
            if packages and fetched >= announced + 50:
                announced = fetched
                print(f"  {fetched}/{packages} packages fetched", flush=True)
            elif packages and line.startswith("Installing collected packages"):
                print("  unpacking", flush=True)
    if process.wait() != 0:
        said = [line for line in log.read_text()[begin:].splitlines() if "is ignored: it is" not in line]
        raise SetupError("pip failed:\n" + "\n".join(said[-15:]))


if __name__ == "__main__":
    if sys.argv[1:] not in (["cpu"], ["gpu"]):
        sys.exit(f"usage: {sys.argv[0]} cpu|gpu")
    try:
        main(sys.argv[1])
    except SetupError as error:
        sys.exit("Cannot set up:\n" + "\n".join(f"  {line}" for line in str(error).splitlines()))
    except KeyboardInterrupt:
        sys.exit("Interrupted; the next call goes on with it")
