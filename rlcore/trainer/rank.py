"""One rank of the trainer: the policy, its optimizer, and the count of updates it has applied."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import torch

from rlcore.config import Config, model_directory
from rlcore.trainer import cpu_platform
from rlcore.trainer.export import write_huggingface, write_weights
from rlcore.trainer.microbatches import MicroBatch, collate, row_lengths, shard, split_by_tokens
from rlcore.trainer.model import load_model
from rlcore.trainer.objective import TokenLogprobs, Totals, objective
from rlcore.trainer.optimizer import distribute, make_optimizer, reduce_gradients, set_hyperparameters, zero_gradients
from rlcore.trainer.report import batch_metrics
from rlcore.trainer.state import load_state, save_state
from rlcore.trainer.world import join_world

STATE = "trainer.json"
"""File of a checkpoint that holds the policy version and the applied updates."""


class UpdateRefused(RuntimeError):
    """An update that is not the next one, or that was applied with another batch."""


class TrainerRank:
    """A data-parallel rank that trains the policy, or holds the frozen KL reference.

    All ranks of a world are called together, with the same arguments. A world of one works alone.
    """

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
        cpu_platform.install()
        torch.set_num_threads(config.hardware.trainer_threads)
        self.config = config
        self.directory = model_directory(config.model)
        self.rank, self.world_size = rank, world_size
        self.device = join_world(rank, world_size, master_address, master_port, config.seed)
        dtype = getattr(torch, config.model.dtype)
        self.model, self.bridge = load_model(
            self.directory,
            dtype,
            temperature=config.rollout.temperature,
            entropy_gradient=config.algorithm.entropy_loss_coef > 0,
        )
        self.trainable = trainable
        if trainable:
            self.distributed = distribute(self.model)
            self.optimizer = make_optimizer(config.trainer, self.distributed, dtype)
        else:
            self.model.requires_grad_(False)
        self._updates: dict[int, dict[str, Any]] = {}
        self._half_applied: int | None = None

    def policy_version(self) -> int | None:
        """Number of updates applied, which is the number of iterations trained.

        None where an update broke off after it had changed weights: they are no version's.
        """
        return None if self._half_applied is not None else len(self._updates)

    @torch.no_grad()
    def logprobs(self, batch: pl.DataFrame) -> pl.DataFrame:
        """A LogprobBatch of this rank's share of the rows, in their order; all rows in a world of one.

        Args:
            batch: with columns sample_id, prompt_ids and response_ids.
        """
        self.model.eval()
        lengths = row_lengths(batch)
        mine = shard(range(len(batch)), lengths, self.rank, self.world_size)
        answered = batch["response_ids"].list.len() > 0
        scores: dict[int, list[float]] = {row: [] for row in mine}
        for micro in self._micro_batches(batch, [row for row in mine if answered[row]], lengths):
            logprobs = micro.align(self._score(micro)[0])
            for row, values, mask in zip(micro.rows, logprobs, micro.response_mask, strict=True):
                scores[row] = values[mask].tolist()
        cpu_platform.release_heap()
        column = pl.Series("logprobs", [scores[row] for row in mine], dtype=pl.List(pl.Float32))
        return batch[mine].select("sample_id", column)

    def update(self, iteration: int, digest: str, batch: pl.DataFrame) -> dict[str, Any]:
        """Apply one TrainBatch: `ppo_epochs` optimizer steps, each on all its rows. Returns the report.

        An update that was applied before returns its recorded report and changes nothing. A batch in which no
        token trains counts as an update without an optimizer step (`skipped`).

        The report has the fields of `rlcore.reports.UpdateReport`. Its metrics are of the whole batch and of the
        last optimizer step: `grad_norm` (before clipping) and those of `report.batch_metrics`; `tokens_per_second`
        counts prompt and response tokens of the rows that train, once per optimizer step.

        Args:
            iteration: policy_version() + 1, or one that was applied.
            digest: of the batch.

        Raises:
            UpdateRefused: out of order, applied with another digest, not trainable, or an attempt at it broke off
                after it had changed weights.
            NonFiniteGradient: the gradient is not finite; no weight was changed by it.
        """
        self._refuse(iteration, digest)
        if iteration not in self._updates:
            self._updates[iteration] = {"digest": digest, "report": self._train(iteration, batch)}
            self._half_applied = None
            cpu_platform.release_heap()
        return self._updates[iteration]["report"]

    def export_weights(self, path: str) -> int:
        """Write one safetensors file, as a fresh engine would load it; its size in bytes. Rank 0 writes, others 0."""
        return write_weights(self.model, self.bridge, Path(path)) if self.rank == 0 else 0

    def export_huggingface(self, directory: str) -> None:
        """Write a directory that transformers and vLLM load. Rank 0 writes."""
        if self.rank == 0:
            write_huggingface(self.model, self.bridge, self.directory, Path(directory))

    def save_checkpoint(self, directory: str) -> None:
        """Write everything that training goes on from. It counts as a checkpoint after `checkpoint.publish`."""
        path = Path(directory)
        path.mkdir(parents=True, exist_ok=True)
        save_state(path, self.distributed, self.optimizer)
        if self.rank == 0:
            updates = [{"iteration": iteration, **update} for iteration, update in self._updates.items()]
            state = {"policy_version": self.policy_version(), "updates": updates}
            (path / STATE).write_text(json.dumps(state, indent=1))

    def load_checkpoint(self, directory: str) -> None:
        """Go back, or on, to what `save_checkpoint` wrote; learning rate and the like stay the configuration's.

        Megatron loads a damaged file without an error: `checkpoint.verify` comes first.
        """
        path = Path(directory)
        load_state(path, self.distributed, self.optimizer)
        set_hyperparameters(self.optimizer, self.config.trainer)
        state = json.loads((path / STATE).read_text())
        self._updates = {
            update["iteration"]: {"digest": update["digest"], "report": update["report"]} for update in state["updates"]
        }
        self._half_applied = None

    def _refuse(self, iteration: int, digest: str) -> None:
        applied = self._updates.get(iteration)
        if not self.trainable:
            raise UpdateRefused(f"update {iteration}: this is the frozen reference")
        if applied is not None and applied["digest"] != digest:
            raise UpdateRefused(
                f"update {iteration} was applied with batch {applied['digest']}, not {digest}: "
                "restore an older checkpoint to train on another batch"
            )
        if applied is None and iteration != len(self._updates) + 1:
            raise UpdateRefused(f"update {iteration} is out of order: the next one is {len(self._updates) + 1}")
        if self._half_applied is not None:
            raise UpdateRefused(
                f"update {self._half_applied} broke off after it had changed weights: restore a checkpoint"
            )

    def _train(self, iteration: int, batch: pl.DataFrame) -> dict[str, Any]:
        started = time.monotonic()
        algorithm = self.config.algorithm
        totals = Totals.of(batch, self.config.rollout.response_length)
        lengths = row_lengths(batch)
        trained = [row for row, trains in enumerate(batch["loss_mask"].list.any()) if trains]
        mine = shard(trained, lengths, self.rank, self.world_size)
        steps = algorithm.ppo_epochs if trained else 0
        grad_norm = 0.0
        shares: list[dict[str, torch.Tensor]] = []
        before: list[TokenLogprobs] = []
        tokens: list[TokenLogprobs] = []
        self.model.train()
        for _ in range(steps):
            zero_gradients(self.distributed, self.optimizer)
            shares, tokens = self._accumulate_gradients(batch, mine, lengths, totals)
            before = before or tokens
            # The optimizer's temporaries are as large as the activations were: not both at once.
            cpu_platform.release_heap()
            grad_norm = reduce_gradients(self.distributed, self.optimizer)
            self._half_applied = iteration
            self.optimizer.step()
        metrics = batch_metrics(shares, before, tokens)
        seconds = time.monotonic() - started
        return {
            "iteration": iteration,
            "policy_version": iteration,
            "optimizer_steps": steps,
            "skipped": steps == 0,
            "seconds": seconds,
            "metrics": {
                "learning_rate": self.config.trainer.learning_rate,
                "grad_norm": grad_norm,
                "num_tokens": totals.num_tokens,
                "num_sequences": totals.num_sequences,
                "tokens_per_second": steps * sum(lengths[row] for row in trained) / seconds,
                **metrics,
            },
        }

    def _accumulate_gradients(
        self, batch: pl.DataFrame, rows: list[int], lengths: list[int], totals: Totals
    ) -> tuple[list[dict[str, torch.Tensor]], list[TokenLogprobs]]:
        shares, tokens = [], []
        for micro in self._micro_batches(batch, rows, lengths):
            logprobs, entropy = (micro.align(values) for values in self._score(micro))
            loss, share, kept = objective(self.config.algorithm, batch, micro, logprobs, entropy, totals)
            loss.backward()
            shares.append(share)
            tokens.append(kept)
        return shares, tokens

    def _micro_batches(self, batch: pl.DataFrame, rows: list[int], lengths: list[int]) -> Iterator[MicroBatch]:
        for split in split_by_tokens(rows, lengths, self.config.trainer.max_tokens_per_micro_batch):
            yield collate(batch, split).to(self.device)

    def _score(self, micro: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropy at the scored positions, (N,) each."""
        model = self.distributed if self.trainable else self.model
        positions = torch.arange(micro.input_ids.shape[1], device=self.device).expand_as(micro.input_ids)
        return model(micro.input_ids, positions, None, labels=micro.next_ids, loss_mask=micro.scored)
