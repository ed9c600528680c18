"""The trainer, the reference model and the critic as the stages see them: one handle for all data-parallel ranks."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import polars as pl
import ray
from ray.actor import ActorHandle

from rlcore.cluster.residents import QUIET_THREADS, STEADY_MEMORY, Resident, end, find, get_or_create, wait_for
from rlcore.config import Config
from rlcore.reports import UpdateReport


@dataclass(frozen=True)
class RankGroup:
    """Calls every rank; what all ranks agree on is taken from the first."""

    ranks: tuple[ActorHandle, ...]

    def _call(self, method: str, *arguments: Any) -> list[Any]:
        return wait_for(*(rank.call.remote(method, *arguments) for rank in self.ranks))

    def _score(self, method: str, batch: pl.DataFrame) -> pl.DataFrame:
        """What each rank says of its share of the rows, in the rows' order."""
        shards = self._call(method, ray.put(batch.select("sample_id", "prompt_ids", "response_ids")))
        return batch.select("sample_id").join(pl.concat(shards), on="sample_id", how="left", maintain_order="left")

    def policy_version(self) -> int | None:
        """Updates applied; None where ranks disagree, or one has weights of no version."""
        versions = set(self._call("policy_version"))
        return versions.pop() if len(versions) == 1 else None

    def update(self, iteration: int, digest: str, batch: pl.DataFrame) -> UpdateReport:
        """Train on a TrainBatch. Once: for an update already applied, its recorded report."""
        return UpdateReport.model_validate(self._call("update", iteration, digest, ray.put(batch))[0])

    def save_checkpoint(self, directory: str) -> None:
        self._call("save_checkpoint", directory)

    def load_checkpoint(self, directory: str) -> None:
        self._call("load_checkpoint", directory)


class TrainerGroup(RankGroup):
    """The policy, or the frozen reference model."""

    def logprobs(self, batch: pl.DataFrame) -> pl.DataFrame:
        """A LogprobBatch for rows with sample_id, prompt_ids and response_ids, in their order."""
        return self._score("logprobs", batch)

    def export_weights(self, path: str) -> int:
        """One safetensors file of all weights; its bytes."""
        return int(self._call("export_weights", path)[0])

    def export_huggingface(self, directory: str) -> None:
        self._call("export_huggingface", directory)


class CriticGroup(RankGroup):
    """The critic."""

    def values(self, batch: pl.DataFrame) -> pl.DataFrame:
        """A ValueBatch for rows with sample_id, prompt_ids and response_ids, in their order."""
        return self._score("values", batch)


G = TypeVar("G", bound=RankGroup)


@dataclass(frozen=True)
class Role(Generic[G]):
    """A model that a run has, on as many actors as there are data-parallel ranks."""

    name: str
    """Of the actors, before the rank's number."""
    group: type[G]
    rank: tuple[str, str]
    """Module and class of what each actor holds."""
    options: tuple[Any, ...] = ()
    """Further arguments of that class."""


TRAINER = Role("trainer", TrainerGroup, ("rlcore.trainer.rank", "TrainerRank"))
REFERENCE = Role("reference", TrainerGroup, ("rlcore.trainer.rank", "TrainerRank"), options=(False,))
CRITIC = Role("critic", CriticGroup, ("rlcore.trainer.critic", "CriticRank"))


def rank_names(role: Role[Any], config: Config) -> list[str]:
    """The actors' names, by rank."""
    return [f"{role.name}-{rank}" for rank in range(config.trainer.world_size)]


def rank_group(role: Role[G], config: Config, run_id: str) -> G:
    """The run's ranks of that role; made where they are missing.

    The ranks of a group meet once, when they are made: if one is missing, all are made anew.
    """
    size = config.trainer.world_size
    names = rank_names(role, config)
    there = [actor for name in names if (actor := find(name, run_id))]
    if len(there) == size:
        return role.group(tuple(there))
    end(names, run_id)
    address, port = ray.util.get_node_ip_address(), _free_port()
    ranks = tuple(
        get_or_create(
            Resident,
            name,
            run_id,
            (*role.rank, config, rank, address, port, *role.options),
            {**QUIET_THREADS, **STEADY_MEMORY, "OMP_NUM_THREADS": str(config.hardware.trainer_threads)},
            num_gpus=config.hardware.trainer_gpus,
        )
        for rank, name in enumerate(names)
    )
    return role.group(ranks)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
