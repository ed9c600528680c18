"""What the tests of the whole pipeline share: a small training, `rlvr up` on free ports, and Prefect's API.

The model learns to answer in lower case, which a random one does often enough for rewards to vary.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import safetensors.torch
import torch

from flows import services
from rlcore.store import RunStore

REPOSITORY = Path(__file__).parents[2]
RLVR = [sys.executable, "-c", "from flows.cli import main; main()"]
PREFECT = [sys.executable, "-m", "prefect", "--no-prompt"]

BUSY_PAUSES_SECONDS = (2.0, 4.0, 8.0)

T = TypeVar("T")


def tiny_training(directory: Path, model: Path) -> list[str]:
    """Overrides of configs/arithmetic.yaml: the tiny model, a small data set, one thread, float32."""
    for name, count in {"train": 24, "held_out": 6}.items():
        rows = [
            {
                "domain": "arithmetic",
                "tag": "lowercase",
                "prompt": f"Say {name} {number}.",
                "ground_truth": {"rules": [{"kind": "lowercase"}]},
            }
            for number in range(count)
        ]
        (directory / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return [
        f"runs_dir={directory}/runs",
        f"model.path={model}",
        "model.dtype=float32",
        f"data.train=['{directory}/train.jsonl']",
        f"data.held_out=['{directory}/held_out.jsonl']",
        "rewards.arithmetic.grader=format",
        "rollout.rollout_batch_size=4",
        "rollout.num_return_sequences_in_group=4",
        "rollout.response_length=6",
        "trainer.learning_rate=1e-3",
        "hardware.trainer_threads=1",
        "hardware.engines=1",
        "hardware.engine_threads=1",
        "hardware.kv_cache_gib=0.1",
        "sync.probe_tolerance=1e-3",
        "eval_steps=2",
        "save_steps=2",
        "iterations=4",
    ]


def store_of(overrides: list[str], run: str) -> RunStore:
    return RunStore(f"{overrides[0].removeprefix('runs_dir=')}/{run}")


def weights(store: RunStore, iteration: int) -> dict[str, torch.Tensor]:
    path = f"{store.url}/checkpoints/{iteration:06d}/huggingface/model.safetensors"
    return safetensors.torch.load_file(path)


def stages_done(store: RunStore, iteration: int) -> list[str]:
    return [entry.stage for entry in store.ledger() if entry.iteration == iteration]


def wait_until(condition: Callable[[], T], what: str, seconds: float = 240.0) -> T:
    """What the condition answers once it holds."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"not in {seconds:.0f} s: {what}"
        time.sleep(0.1)
    return answer


def train(overrides: list[str], environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """`rlvr train arithmetic`, under way."""
    return subprocess.Popen(
        [*RLVR, "train", "arithmetic", *overrides],
        cwd=REPOSITORY,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def rlvr(*command: str) -> str:
    """What the command printed, with the services of its own."""
    return _output([*RLVR, *command], None)


@dataclass(frozen=True)
class Up:
    """The services of an `rlvr up`, and a user of them."""

    environment: dict[str, str]
    """Of a shell that uses them."""

    @property
    def services(self) -> services.Services:
        return services.Services.model_validate_json(_record(self.environment).read_text())

    def rlvr(self, *command: str) -> str:
        """What the command printed."""
        return _output([*RLVR, *command], self.environment)

    def prefect(self, *command: str) -> str:
        """What the command printed."""
        return _output([*PREFECT, *command], self.environment)

    def run_deployment(self, overrides: list[str], *options: str) -> str:
        """`prefect deployment run rlvr/iterate`; the flow run's id."""
        parameters = json.dumps({"config": "arithmetic", "overrides": overrides})
        printed = self.prefect("deployment", "run", "rlvr/iterate", "--params", parameters, *options)
        return next(line.split()[-1] for line in printed.splitlines() if "UUID" in line)

    def start_deployment(self, overrides: list[str], name: str = "rlvr/iterate") -> str:
        """What the dashboard's Run does; the flow run's id."""
        deployment = self.ask("GET", f"deployments/name/{name}")["id"]
        parameters = {"config": "arithmetic", "overrides": overrides}
        return str(self.ask("POST", f"deployments/{deployment}/create_flow_run", {"parameters": parameters})["id"])

    def state_of(self, flow_run: str) -> str:
        return str(self.ask("GET", f"flow_runs/{flow_run}")["state"]["type"])

    def mark_crashed(self, flow_run: str) -> None:
        """What the server does by itself some time after the process of a flow run was last heard of."""
        self._set_state(flow_run, "CRASHED", "Crashed")

    def press_retry(self, flow_run: str) -> None:
        """What the dashboard's Retry does."""
        self._set_state(flow_run, "SCHEDULED", "AwaitingRetry")

    def cancel(self, flow_run: str) -> None:
        """What the dashboard's Cancel does."""
        self._set_state(flow_run, "CANCELLING", "Cancelling")

    def _set_state(self, flow_run: str, kind: str, name: str) -> None:
        self.ask("POST", f"flow_runs/{flow_run}/set_state", {"state": {"type": kind, "name": name}, "force": True})

    def ask(self, method: str, path: str, content: Any = None) -> Any:
        """The answer of the server's API. One that is too busy is asked again, as by Prefect's own client."""
        for pause in (*BUSY_PAUSES_SECONDS, None):
            answer = httpx.request(method, f"{self.services.api_url}/{path}", json=content, timeout=30.0)
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE or pause is None:
                break
            time.sleep(pause)
        answer.raise_for_status()
        return answer.json()


@contextmanager
def up(cache: Path, **variables: str) -> Iterator[Up]:
    """`rlvr up` on free ports, and `rlvr down`.

    Args:
        cache: a directory of its own.
        variables: of the environment of everything that is started.
    """
    environment = {**os.environ, **variables, "RLVR_CACHE": str(cache)}
    ports = [f"--port={services.free_port()}", f"--ray-port={services.free_port()}"]
    _output([*RLVR, "up", *ports], environment)
    running = services.Services.model_validate_json(_record(environment).read_text())
    try:
        yield Up({**environment, **running.environment()})
    finally:
        assert "prefect-server" in _output([*RLVR, "down"], environment)
        assert not _record(environment).exists()


def _record(environment: dict[str, str]) -> Path:
    return Path(environment["RLVR_CACHE"]) / "services" / "up.json"


def _output(command: list[str], environment: dict[str, str] | None) -> str:
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
