"""The trainer, the reference model and the critic as the stages see them: one handle for all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import polars as pl
import ray

from rlcore.cluster.ranks import World, end_world, world
from rlcore.cluster.residents import QUIET_THREADS, STEADY_MEMORY, WAKEFUL_THREADS
from rlcore.cluster.waiting import Supervision, stage_lock
from rlcore.config import Config
from rlcore.reports import UpdateReport
from rlcore.store import RunStore
from rlcore.weights.bucket import Bucket


@dataclass(frozen=True)
class RankGroup:
    """Calls every rank; what all ranks agree on is taken from the first."""

    world: World
    store: RunStore

    def _call(self, method: str, *arguments: Any, silent: bool = False) -> list[Any]:
        """Each rank's result.

        One call at a time, whichever stages make them: ranks that were reached in different order would wait for one
        another in different collectives.

        Args:
            silent: as of `World.call`.
        """
        with stage_lock(self.store, f"{self.world.role}-call", self.world.supervision.deadlines):
            return self.world.call(method, *arguments, silent=silent)

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
        self._call("save_checkpoint", directory, silent=True)

    def load_checkpoint(self, directory: str) -> None:
        self._call("load_checkpoint", directory, silent=True)

    def offload(self) -> None:
        """Lend the ranks' device memory until the next call that computes."""
        self._call("offload", silent=True)


class TrainerGroup(RankGroup):
    """The policy, or the frozen reference model."""

    def logprobs(self, batch: pl.DataFrame) -> pl.DataFrame:
        """A LogprobBatch for rows with sample_id, prompt_ids and response_ids, in their order."""
        return self._score("logprobs", batch)

    def export_weights(self, path: str) -> int:
        """One safetensors file of all weights; its bytes."""
        return int(self._call("export_weights", path, silent=True)[0])

    def buckets(self, capacity: int) -> Iterator[Bucket]:
        """All weights in buckets of at most so many bytes, or one tensor; each is there until the next but one is."""
        self._call("start_export", capacity)
        while (bucket := self._call("next_bucket", silent=True)[0]) is not None:
            yield bucket

    def export_huggingface(self, directory: str) -> None:
        self._call("export_huggingface", directory, silent=True)


class CriticGroup(RankGroup):
    """The critic."""

    def values(self, batch: pl.DataFrame) -> pl.DataFrame:
        """A ValueBatch for rows with sample_id, prompt_ids and response_ids, in their order."""
        return self._score("values", batch)


G = TypeVar("G", bound=RankGroup)


@dataclass(frozen=True)
class Role(Generic[G]):
    """A model that a run has, on as many actors as there are ranks."""

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


def rank_group(role: Role[G], config: Config, store: RunStore) -> G:
    """The run's ranks of that role; all made anew where they are not all there.

    Raises:
        as `rlcore.cluster.ranks.world`.
    """

    def arguments(rank: int, address: str, port: int) -> tuple[Any, ...]:
        return (config, rank, address, port, *role.options)

    threads = {"OMP_NUM_THREADS": str(config.hardware.trainer_threads)}
    if config.trainer.world_size == 1:
        # Several ranks on a machine may have more threads than it has cores.
        threads |= WAKEFUL_THREADS
    ranks = world(
        role.name,
        store.run_id,
        config.trainer.world_size,
        num_gpus=config.hardware.trainer_gpus,
        environment=QUIET_THREADS | STEADY_MEMORY | threads,
        kind=role.rank,
        arguments=arguments,
        supervision=Supervision(store.directory, config.deadlines),
        identity=config.digest("seed", "model", "algorithm", "critic", "trainer", "hardware", "rollout"),
    )
    return role.group(ranks, store)


def lend_memory(config: Config, *groups: RankGroup | None) -> None:
    """Lend the groups' device memory to the engine, where the configuration says so."""
    if config.trainer.offload:
        for group in groups:
            if group is not None:
                group.offload()


def end_group(role: Role[Any], run_id: str) -> None:
    """End the run's ranks of that role."""
    end_world(role.name, run_id)
