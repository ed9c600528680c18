"""Who may import whom: the contracts of pyproject.toml hold, and each of them notices a break."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGES = ("flows", "tasks", "rlcore", "sandbox")


def lint_imports(directory: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


def test_the_contracts_hold() -> None:
    result = lint_imports(REPOSITORY)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("rlcore/newcomer.py", "import flows", "never the other way"),
        ("tasks/newcomer.py", "import flows", "never the other way"),
        ("sandbox/newcomer.py", "import rlcore.config", "the sandbox is a service of its own"),
        ("rlcore/newcomer.py", "import prefect", "rlcore knows nothing of Prefect"),
        ("rlcore/generation/newcomer.py", "import vllm", "only the vLLM engine imports vllm"),
        ("rlcore/newcomer.py", "from megatron.core import parallel_state", "only the trainer imports Megatron"),
        ("tasks/newcomer.py", "import mbridge", "only the trainer imports Megatron"),
        ("flows/newcomer.py", "import ray", "Ray belongs to the cluster and the stages"),
        ("rlcore/algorithms/newcomer.py", "import polars", "the algorithms need torch and nothing else"),
        ("rlcore/config_errors.py", "import ray", "the configuration is read without the engines"),
    ],
)
def test_a_break_is_noticed(tmp_path: Path, file: str, line: str, contract: str) -> None:
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    for package in PACKAGES:
        shutil.copytree(REPOSITORY / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / file).open("a") as source:
        source.write(f"\n{line}\n")
    result = lint_imports(tmp_path)
    broken = [row for row in result.stdout.splitlines() if " BROKEN" in row]
    assert result.returncode == 1
    assert any(contract in row for row in broken), result.stdout


def test_flows_start_without_torch_and_wandb() -> None:
    code = "import sys, flows.rlvr, flows.train; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert not {"torch", "wandb", "transformers", "vllm"} & set(done.stdout.split())
