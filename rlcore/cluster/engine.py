"""The inference engine and the graders as the stages see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import ray
from ray.actor import ActorHandle

from rlcore.cluster.residents import QUIET_THREADS, AsyncResident, Resident, get_or_create
from rlcore.cluster.waiting import Call, Supervision, results_of
from rlcore.config import Config
from rlcore.generation.interface import Generation, GenerationRequest
from rlcore.store import RunStore


@dataclass(frozen=True)
class ResidentHandle:
    """An object in a process of its own, whose methods are called synchronously."""

    name: str
    """Of the actor."""
    actor: ActorHandle
    supervision: Supervision
    slack_seconds: float = 0.0
    """How much longer than others it may be without progress."""

    def call(self, method: str, *arguments: Any, silent: bool = False) -> Any:
        """What the method returns.

        Args:
            silent: it shows no progress while it lasts.

        Raises:
            as `rlcore.cluster.waiting.results_of`.
        """
        return self.calls(method, [arguments], silent)[0]

    def calls(self, method: str, arguments: Sequence[tuple[Any, ...]], silent: bool = False) -> list[Any]:
        """The same for several calls at once."""
        deadlines = self.supervision.deadlines
        silence = (deadlines.silent_seconds if silent else deadlines.stall_seconds) + self.slack_seconds
        calls = [Call(self.name, self.actor, self.actor.call.remote(method, *given)) for given in arguments]
        return results_of(calls, f"{method} by {self.name}", self.supervision, silence)


@dataclass(frozen=True)
class EngineHandle:
    """A Generator (rlcore/generation/interface.py) in a process of its own, called synchronously."""

    resident: ResidentHandle

    def start(self) -> None:
        """Load the model, unless it is loaded."""
        self.resident.call("start", silent=True)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        return list(self.resident.call("generate", requests))

    def score(self, responses: pl.DataFrame, temperature: float) -> pl.Series:
        """Log-probabilities of the response tokens of each row (prompt_ids, response_ids), as a list each."""
        rows = responses.select("prompt_ids", "response_ids").iter_rows()
        scores = self.resident.calls("score", [(*row, temperature) for row in rows])
        return pl.Series("logprobs", scores, dtype=pl.List(pl.Float32))

    def update_weights(self, path: str, policy_version: int) -> float:
        return float(self.resident.call("update_weights", path, policy_version, silent=True))

    def policy_version(self) -> int:
        return int(self.resident.call("policy_version"))


def engine(config: Config, store: RunStore) -> EngineHandle:
    """The run's engine, started; made where it is missing, or was made under other settings."""
    name = "engine-0"
    hardware = (f"hardware.{key}" for key in ("engine_threads", "kv_cache_gib", "max_num_seqs", "engine_gpus"))
    log_path = str(store.directory / "logs" / f"{name}.log")
    actor = get_or_create(
        AsyncResident,
        name,
        store.run_id,
        store.directory,
        ("rlcore.generation.vllm", "VLLMGenerator", config, log_path),
        QUIET_THREADS,
        identity=config.digest("model", "data.prompt_length", "rollout.response_length", *hardware),
        num_gpus=config.hardware.engine_gpus,
    )
    handle = EngineHandle(ResidentHandle(name, actor, Supervision(store.directory, config.deadlines)))
    handle.start()
    return handle


@dataclass(frozen=True)
class GradersHandle:
    """The reward router with its warm worker processes."""

    resident: ResidentHandle

    def grade(self, responses: pl.DataFrame) -> pl.DataFrame:
        """A RewardBatch for rows with sample_id, domain, response_text and ground_truth."""
        return self._call("grade", responses)

    def judge(self, responses: pl.DataFrame) -> pl.DataFrame:
        """As `grade`, by the first grader of each domain alone."""
        return self._call("judge", responses)

    def _call(self, method: str, responses: pl.DataFrame) -> pl.DataFrame:
        graded: pl.DataFrame = self.resident.call(method, ray.put(responses))
        return graded


def graders(config: Config, store: RunStore) -> GradersHandle:
    """The run's graders; made where they are missing, or were made under other settings."""
    name = "graders"
    arguments = ("rlcore.rewards.router", "RewardRouter", config.rewards, config.hardware.reward_processes)
    identity = config.digest("rewards", "hardware.reward_processes")
    actor = get_or_create(Resident, name, store.run_id, store.directory, arguments, QUIET_THREADS, identity=identity)
    # Every process may be at a response for as long as that may take.
    longest = max(reward.timeout_seconds for reward in config.rewards.values())
    return GradersHandle(ResidentHandle(name, actor, Supervision(store.directory, config.deadlines), longest))
