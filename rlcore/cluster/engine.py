"""The inference engine and the graders as the stages see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
import ray
from ray.actor import ActorHandle

from rlcore.cluster.residents import (
    QUIET_THREADS,
    AsyncResident,
    Resident,
    actor_names,
    end,
    get_or_create,
    wait_for,
)
from rlcore.config import Config
from rlcore.generation.interface import Generation, GenerationRequest


@dataclass(frozen=True)
class EngineHandle:
    """A Generator (rlcore/generation/interface.py) in a process of its own, called synchronously."""

    actor: ActorHandle

    def start(self) -> None:
        """Load the model, unless it is loaded."""
        wait_for(self.actor.call.remote("start"))

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        return list(wait_for(self.actor.call.remote("generate", requests))[0])

    def score(self, responses: pl.DataFrame, temperature: float) -> pl.Series:
        """Log-probabilities of the response tokens of each row (prompt_ids, response_ids), as a list each."""
        calls = [
            self.actor.call.remote("score", prompt_ids, response_ids, temperature)
            for prompt_ids, response_ids in responses.select("prompt_ids", "response_ids").iter_rows()
        ]
        return pl.Series("logprobs", wait_for(*calls), dtype=pl.List(pl.Float32))

    def update_weights(self, path: str, policy_version: int) -> float:
        return float(wait_for(self.actor.call.remote("update_weights", path, policy_version))[0])

    def policy_version(self) -> int:
        return int(wait_for(self.actor.call.remote("policy_version"))[0])


def engine(config: Config, run_id: str, log_path: str) -> EngineHandle:
    """The run's engine, started; made where it is missing, or was made under other settings."""
    hardware = (f"hardware.{key}" for key in ("engine_threads", "kv_cache_gib", "max_num_seqs", "engine_gpus"))
    identity = config.digest("model", "data.prompt_length", "rollout.response_length", *hardware)
    actor = get_or_create(
        AsyncResident,
        _current("engine", run_id, identity),
        run_id,
        ("rlcore.generation.vllm", "VLLMGenerator", config, log_path),
        QUIET_THREADS,
        num_gpus=config.hardware.engine_gpus,
    )
    handle = EngineHandle(actor)
    handle.start()
    return handle


@dataclass(frozen=True)
class GradersHandle:
    """The reward router with its warm worker processes."""

    actor: ActorHandle

    def grade(self, responses: pl.DataFrame) -> pl.DataFrame:
        """A RewardBatch for rows with sample_id, domain, response_text and ground_truth."""
        return self._call("grade", responses)

    def judge(self, responses: pl.DataFrame) -> pl.DataFrame:
        """As `grade`, by the first grader of each domain alone."""
        return self._call("judge", responses)

    def _call(self, method: str, responses: pl.DataFrame) -> pl.DataFrame:
        graded: pl.DataFrame = wait_for(self.actor.call.remote(method, ray.put(responses)))[0]
        return graded


def graders(config: Config, run_id: str) -> GradersHandle:
    """The run's graders; made where they are missing, or were made under other settings."""
    arguments = ("rlcore.rewards.router", "RewardRouter", config.rewards, config.hardware.reward_processes)
    name = _current("graders", run_id, config.digest("rewards", "hardware.reward_processes"))
    return GradersHandle(get_or_create(Resident, name, run_id, arguments, QUIET_THREADS))


def _current(role: str, run_id: str, identity: str) -> str:
    """The name of a role's actor under the settings of that digest. One of other settings is ended."""
    name = f"{role}-{identity[:12]}"
    end([other for other in actor_names(run_id) if other.startswith(f"{role}-") and other != name], run_id)
    return name
