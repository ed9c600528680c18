"""The inference engines and the graders as the stages see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import ray
from ray.actor import ActorHandle

from rlcore.cluster.residents import QUIET_THREADS, AsyncResident, Resident, actor_names, end, get_or_create
from rlcore.cluster.waiting import Call, Supervision, results_of
from rlcore.config import Config
from rlcore.generation.interface import Generation, GenerationRequest
from rlcore.store import RunStore
from rlcore.weights.bucket import Bucket


class EngineProcess(AsyncResident):
    """Holds a StreamingGenerator."""


class GradersProcess(Resident):
    """Holds a RewardRouter."""


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
        return together([self.begin(method, *arguments)], f"{method} by {self.name}", self, silent)[0]

    def begin(self, method: str, *arguments: Any) -> Call:
        """The method, under way."""
        return Call(self.name, self.actor, self.actor.call.remote(method, *arguments))


def together(
    calls: Sequence[Call],
    doing: str,
    resident: ResidentHandle,
    silent: bool = False,
    others: Sequence[ResidentHandle] = (),
) -> list[Any]:
    """What the calls return, which are under way.

    Args:
        doing: what they do, for people.
        resident: one of those that are called: how long to wait is the same for all.
        silent: they show no progress while they last.
        others: those who work for them, and show the progress.
    """
    deadlines = resident.supervision.deadlines
    silence = (deadlines.silent_seconds if silent else deadlines.stall_seconds) + max(
        each.slack_seconds for each in (resident, *others)
    )
    return results_of(calls, doing, resident.supervision, silence, [other.name for other in others])


@dataclass(frozen=True)
class EngineHandle:
    """A StreamingGenerator in a process of its own, called synchronously."""

    resident: ResidentHandle

    def policy_version(self) -> int:
        return int(self.resident.call("policy_version"))


@dataclass(frozen=True)
class EngineGroup:
    """The run's engines, which do the same work."""

    engines: tuple[EngineHandle, ...]

    @property
    def residents(self) -> list[ResidentHandle]:
        return [engine.resident for engine in self.engines]

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """One generation per request, in their order; the requests dealt out to all engines."""
        count = len(self.engines)
        shares = [requests[number::count] for number in range(count)]
        parts = self._on_all("generate", [(share,) for share in shares])
        generations: list[Generation] = [None] * len(requests)  # type: ignore[list-item]
        for number, part in enumerate(parts):
            generations[number::count] = part
        return generations

    def score(self, responses: pl.DataFrame, temperature: float) -> list[pl.Series]:
        """Log-probabilities of the response tokens of each row (prompt_ids, response_ids), as a list each, by each."""
        rows = responses.select("prompt_ids", "response_ids").rows()
        calls = [resident.begin("score", *row, temperature) for resident in self.residents for row in rows]
        scores = together(calls, f"score by {self._names}", self.residents[0])
        shares = [scores[start : start + len(rows)] for start in range(0, len(scores), max(1, len(rows)))]
        return [pl.Series("logprobs", share, dtype=pl.List(pl.Float32)) for share in shares]

    def start(self) -> None:
        """Load the model, where it is not loaded; wake those that sleep."""
        self._on_all("start", [()] * len(self.engines), silent=True)

    def sleep(self) -> None:
        """Give back the GPUs' memory until they are started."""
        self._on_all("sleep", [()] * len(self.engines), silent=True)

    def start_update(self) -> None:
        """Stop them between two tokens, to be given all weights anew."""
        self._on_all("start_update", [()] * len(self.engines), silent=True)

    def begin_load(self, bucket: Bucket) -> list[Call]:
        """They load the bucket: calls that are under way."""
        return [resident.begin("load_bucket", bucket) for resident in self.residents]

    def loaded(self, calls: Sequence[Call]) -> None:
        """They have loaded the bucket."""
        together(calls, f"load_bucket by {self._names}", self.residents[0], silent=True)

    def finish_update(self, policy_version: int) -> None:
        """They have all weights and go on."""
        self._on_all("finish_update", [(policy_version,)] * len(self.engines), silent=True)

    def behind(self, policy_version: int) -> EngineGroup:
        """Those that have not the weights of that version."""
        return EngineGroup(tuple(engine for engine in self.engines if engine.policy_version() != policy_version))

    def _on_all(self, method: str, arguments: Sequence[tuple[Any, ...]], silent: bool = False) -> list[Any]:
        calls = [resident.begin(method, *given) for resident, given in zip(self.residents, arguments, strict=True)]
        return together(calls, f"{method} by {self._names}", self.residents[0], silent)

    @property
    def _names(self) -> str:
        return ", ".join(resident.name for resident in self.residents)


def engines(config: Config, store: RunStore) -> EngineGroup:
    """The run's engines, started; made where they are missing, or were made under other settings."""
    hardware = (f"hardware.{key}" for key in ("engine_threads", "kv_cache_gib", "max_num_seqs", "engine_gpus"))
    identity = config.digest("model", "data.prompt_length", "rollout.response_length", *hardware)
    names = [f"engine-{number}" for number in range(config.hardware.engines)]
    others = [name for name in actor_names(store.run_id) if name.startswith("engine-")]
    end([name for name in others if not name.startswith(tuple(f"{name}-" for name in names))], store.run_id)
    supervision = Supervision(store.directory, config.deadlines)
    group = EngineGroup(
        tuple(EngineHandle(ResidentHandle(name, _engine(name, config, store, identity), supervision)) for name in names)
    )
    group.start()
    return group


def _engine(name: str, config: Config, store: RunStore, identity: str) -> ActorHandle:
    log_path = str(store.directory / "logs" / f"{name}.log")
    return get_or_create(
        EngineProcess,
        name,
        store.run_id,
        store.directory,
        ("rlcore.generation.streaming", "StreamingGenerator", config, log_path),
        QUIET_THREADS,
        identity=identity,
        num_gpus=config.hardware.engine_gpus,
    )


@dataclass(frozen=True)
class GradersHandle:
    """The reward router with its warm worker processes."""

    resident: ResidentHandle

    def grade(self, responses: pl.DataFrame) -> pl.DataFrame:
        """A RewardBatch for rows with sample_id, domain, prompt_text, response_text and ground_truth."""
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
    actor = get_or_create(
        GradersProcess, name, store.run_id, store.directory, arguments, QUIET_THREADS, identity=identity
    )
    # Every process may be at a response for as long as that may take.
    longest = max(reward.timeout_seconds for reward in config.rewards.values())
    return GradersHandle(ResidentHandle(name, actor, Supervision(store.directory, config.deadlines), longest))
