"""Setting up: what is missing is named before anything is downloaded, and what is installed is what is locked."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parent.parent
LOCKS = {device: REPOSITORY / "requirements" / f"{device}.txt" for device in ("cpu", "gpu")}


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """requirements/setup.py as a module, its .venv in a temporary directory."""
    specification = importlib.util.spec_from_file_location("setup_script", REPOSITORY / "requirements/setup.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    return module


def locked(device: str) -> dict[str, str]:
    """Version of each package of a lock."""
    lines = [line for line in LOCKS[device].read_text().splitlines() if not line.startswith("#")]
    return dict(line.split("==") for line in lines)


def test_every_missing_prerequisite_is_named_with_what_is_there(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "MEMORY", 10**15)
    monkeypatch.setattr(setup, "INSTALL_DISK", {"cpu": 10**17})
    monkeypatch.setattr(setup, "PYTHON_VERSION", "3.99")
    with pytest.raises(setup.SetupError) as caught:
        setup.main("cpu")
    text = str(caught.value)
    assert re.search(r"^1000000 GB of available memory are needed; there are [\d.]+ GB$", text, re.MULTILINE)
    assert re.search(r"^\d+ GB of free disk are needed for .*; there are [\d.]+ GB$", text, re.MULTILINE)
    assert "Python 3.99 with the modules venv and ensurepip is needed" in text
    assert not (tmp_path / ".venv").exists()


def test_an_interpreter_of_the_right_version_is_found(setup: ModuleType) -> None:
    found = setup.find_python()
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    assert version.startswith(f"Python {setup.PYTHON_VERSION}.")


def test_disk_is_counted_by_file_system(setup: ModuleType, tmp_path: Path) -> None:
    free = setup.shutil.disk_usage(tmp_path).free
    needs = {tmp_path / "not" / "yet": int(free * 0.7), tmp_path: int(free * 0.7)}
    (problem,) = setup.disk_problems(needs)
    assert str(tmp_path / "not" / "yet") in problem
    assert setup.disk_problems({tmp_path: 1}) == []


def test_what_is_installed_for_one_device_is_not_used_for_another(setup: ModuleType) -> None:
    setup.VENV.mkdir()
    (setup.VENV / "installed").write_text("gpu 0123")
    with pytest.raises(setup.SetupError, match="was made for gpu, not for cpu: `make clean`"):
        setup.main("cpu")


def test_what_is_installed_is_not_installed_again(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "MEMORY", 0)
    monkeypatch.setattr(setup, "RUN_DISK", 0)
    setup.VENV.mkdir()
    stamp = setup.VENV / "installed"
    stamp.write_text(f"cpu {setup.digest(LOCKS['cpu'], REPOSITORY / 'pyproject.toml')}")
    setup.main("cpu")
    assert [file.name for file in setup.VENV.iterdir()] == ["installed"]


def test_an_unknown_device_is_refused() -> None:
    command = [sys.executable, "requirements/setup.py", "tpu"]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "usage" in result.stderr


def wheel(directory: Path, name: str, version: str) -> None:
    """A wheel with one empty module, on an index page."""
    directory.mkdir(parents=True)
    information, file = f"{name}-{version}.dist-info", f"{name}-{version}-py3-none-any.whl"
    (directory / "index.html").write_text(f'<!DOCTYPE html><a href="{file}">{file}</a>')
    with zipfile.ZipFile(directory / file, "w") as archive:
        archive.writestr(f"{name}.py", "")
        archive.writestr(f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{information}/RECORD", "")


def test_torch_comes_from_pytorchs_index_where_the_configured_ones_have_no_cpu_build(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With real pip; `torch` is a tiny wheel, and its index a directory."""
    wheel(tmp_path / "index" / "torch", "torch", "0.1+cpu")
    (tmp_path / "empty").mkdir()
    for variable in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "empty").as_uri())
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "target"))
    log = tmp_path / "pip.log"
    with pytest.raises(setup.SetupError, match=re.escape("No matching distribution found for torch==0.1")):
        setup.install_torch(Path(sys.executable), "torch==0.1", log)
    setup.install_torch(Path(sys.executable), "torch==0.1+cpu", log, cpu_index=(tmp_path / "index").as_uri())
    assert (tmp_path / "target" / "torch.py").exists()


@pytest.mark.parametrize("device", LOCKS)
def test_a_lock_holds_every_dependency_at_a_version_that_is_asked_for(device: str) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [Requirement(line) for line in project["dependencies"] + extras[device] + extras["dev"]]
    versions = locked(device)
    wrong = [
        str(requirement)
        for requirement in wanted
        if not requirement.specifier.contains(versions.get(canonicalize_name(requirement.name), "0"))
    ]
    assert not wrong, f"`make lock` is due: {wrong}"


@pytest.mark.parametrize("device", LOCKS)
def test_a_lock_names_no_place_of_the_machine_that_made_it(device: str) -> None:
    lines = [line for line in LOCKS[device].read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][A-Za-z0-9.+]*", line) for line in lines)
    assert not {"llm", "llama-cpp-python"} & set(locked(device))


def test_the_cpu_lock_has_the_cpu_build_of_torch_and_nothing_that_breaks_it() -> None:
    assert locked("cpu")["torch"].endswith("+cpu")
    assert not {"torchvision", "torchaudio", "torchcodec"} & set(locked("cpu"))
