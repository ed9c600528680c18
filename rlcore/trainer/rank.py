"""One rank of the trainer: the policy, trained or frozen."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import torch
from mbridge.core.bridge import Bridge

from rlcore.config import Config, model_directory
from rlcore.trainer.export import write_huggingface, write_weights
from rlcore.trainer.learner import Learner
from rlcore.trainer.model import ResponseScorer, load_policy
from rlcore.trainer.objective import Totals, objective, with_selection
from rlcore.trainer.report import policy_metrics


class TrainerRank(Learner):
    """A data-parallel rank that trains the policy, or holds the frozen KL reference."""

    def __init__(
        self,
        config: Config,
        rank: int = 0,
        world_size: int = 1,
        master_address: str = "127.0.0.1",
        master_port: int = 0,
        trainable: bool = True,
    ) -> None:
        """Load `config.model`. With `trainable` false there is no optimizer and nothing but scoring and export.

        Raises:
            FileNotFoundError: no model at config.model.path.
            UnsupportedModel: a model that this trainer does not compute.
            ValueError: a rank, world size or port that cannot be.
        """
        self.directory = model_directory(config.model)
        super().__init__(
            config,
            config.trainer,
            config.algorithm.ppo_epochs,
            rank,
            world_size,
            master_address,
            master_port,
            trainable=trainable,
            idle=config.critic_only_iterations,
        )

    def _load_model(self, dtype: torch.dtype) -> tuple[ResponseScorer, Bridge]:
        return load_policy(
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
        return write_weights(self.model, self.bridge, Path(path)) if self.rank == 0 else 0

    def export_huggingface(self, directory: str) -> None:
        """Write a directory that transformers and vLLM load. Rank 0 writes."""
        self.reload()
        if self.rank == 0:
            write_huggingface(self.model, self.bridge, self.directory, Path(directory))

    def _rows_that_train(self, iteration: int, batch: pl.DataFrame) -> list[int]:
        """None while only the critic trains: the update counts as skipped."""
        warming_up = iteration <= self.config.critic_only_iterations
        return [] if warming_up else super()._rows_that_train(iteration, batch)

    def _prepared(self, batch: pl.DataFrame, rows: list[int]) -> pl.DataFrame:
        return with_selection(self.config.algorithm, batch, rows)

    def _accumulate_gradients(self, batch: pl.DataFrame, rows: list[int], totals: Totals) -> dict[str, float]:
        shares, tokens = [], []
        for micro in self._micro_batches(batch, rows):
            logprobs, entropy = self._forward(micro)
            loss, share, kept = objective(self.config.algorithm, batch, micro, logprobs, entropy, totals)
            loss.backward()
            shares.append(share)
            tokens.append(kept)
        return policy_metrics(shares, tokens)
