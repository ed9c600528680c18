"""One rank of the policy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import torch
from mbridge.core.bridge import Bridge
from torch import Tensor

from rlcore.config import Config, model_directory
from rlcore.trainer.export import exported, write_huggingface, write_weights
from rlcore.trainer.learner import Learner
from rlcore.trainer.loading import load_policy
from rlcore.trainer.microbatches import MicroBatch
from rlcore.trainer.model import ResponseScorer
from rlcore.trainer.objective import TokenLogprobs, Totals, objective, with_selection
from rlcore.trainer.report import policy_metrics
from rlcore.weights.bucket import Bucket
from rlcore.weights.shared_memory import SharedMemory, in_buckets


class TrainerRank(Learner):
    """One rank of the policy that trains, or of the frozen KL reference."""

    def __init__(
        self,
        config: Config,
        rank: int = 0,
        master_address: str = "127.0.0.1",
        master_port: int = 0,
        trainable: bool = True,
    ) -> None:
        """Load `config.model`. With `trainable` false there is no optimizer and nothing but scoring and export.

        Raises:
            FileNotFoundError: no model at config.model.path.
            UnsupportedModel: a model that this trainer does not compute.
            ValueError: a rank or port that cannot be.
        """
        self.directory = model_directory(config.model)
        self._memory = SharedMemory()
        self._buckets: Iterator[list[tuple[str, Tensor]]] = iter(())
        super().__init__(
            config,
            config.trainer,
            config.algorithm.ppo_epochs,
            rank,
            master_address,
            master_port,
            trainable=trainable,
            idle=config.critic_only_iterations,
        )

    def _load_model(self, dtype: torch.dtype) -> tuple[list[ResponseScorer], Bridge]:
        return load_policy(
            self.settings,
            self.directory,
            dtype,
            temperature=self.config.rollout.temperature,
            entropy_gradient=self.config.algorithm.entropy_loss_coef > 0,
        )

    def logprobs(self, batch: pl.DataFrame) -> pl.DataFrame:
        """A LogprobBatch of this rank's share of the rows, in their order; all rows in a world of one.

        Args:
            batch: with columns sample_id, prompt_ids and response_ids.
        """
        self.reload()
        return self._score_responses("logprobs", batch)

    def export_weights(self, path: str) -> int:
        """Write one safetensors file, as a fresh engine would load it; its size in bytes. Rank 0 writes, others 0."""
        self.reload()
        return write_weights(self.pieces, self.bridge, Path(path), writes=self.rank == 0)

    def start_export(self, bucket_bytes: int) -> None:
        """From the first tensor again: `next_bucket` gives this rank's model, as a fresh engine would load it."""
        self.reload()
        self._buckets = in_buckets(exported(self.pieces, self.bridge), bucket_bytes)

    def next_bucket(self) -> Bucket | None:
        """The next tensors, in memory that other processes of this machine can read; None where there are no more.

        All ranks call it together. Rank 0 writes; the others' buckets are empty.
        """
        tensors = next(self._buckets, None)
        if tensors is None:
            return None
        return self._memory.write(tensors if self.rank == 0 else [])

    def export_huggingface(self, directory: str) -> None:
        """Write a directory that transformers and vLLM load. Rank 0 writes."""
        self.reload()
        write_huggingface(self.pieces, self.bridge, self.directory, Path(directory), writes=self.rank == 0)

    def _rows_that_train(self, iteration: int, batch: pl.DataFrame) -> list[int]:
        """None while only the critic trains: the update counts as skipped."""
        warming_up = iteration <= self.config.critic_only_iterations
        return [] if warming_up else super()._rows_that_train(iteration, batch)

    def _prepared(self, batch: pl.DataFrame, rows: list[int]) -> pl.DataFrame:
        return with_selection(self.config.algorithm, batch, rows)

    def _objective(
        self, batch: pl.DataFrame, totals: Totals, micro: MicroBatch, outputs: list[Tensor]
    ) -> tuple[Tensor, tuple[dict[str, Tensor], TokenLogprobs]]:
        logprobs, entropy = outputs
        loss, shares, tokens = objective(self.config.algorithm, batch, micro, logprobs, entropy, totals)
        return loss, (shares, tokens)

    def _metrics(self, parts: list[tuple[dict[str, Tensor], TokenLogprobs]]) -> dict[str, float]:
        return policy_metrics([shares for shares, _ in parts], [tokens for _, tokens in parts])
