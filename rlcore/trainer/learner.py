"""A model that trains: its ranks, its optimizer, and the count of updates it has applied."""

from __future__ import annotations

import json
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import torch
from mbridge.core.bridge import Bridge
from megatron.core.models.gpt.gpt_model import GPTModel
from torch import Tensor

from rlcore.config import Config, TrainerConfig
from rlcore.trainer import cpu_platform
from rlcore.trainer.microbatches import MicroBatch, collate
from rlcore.trainer.minibatches import optimizer_steps
from rlcore.trainer.objective import Totals
from rlcore.trainer.offload import LentMemory
from rlcore.trainer.optimizer import distribute, make_optimizer, reduce_gradients, zero_gradients
from rlcore.trainer.packing import RowLengths, pack
from rlcore.trainer.report import over_steps
from rlcore.trainer.schedule import Schedule
from rlcore.trainer.state import load_state, save_state
from rlcore.trainer.updates import AppliedUpdates, UpdateRefused
from rlcore.trainer.world import join_world

logger = logging.getLogger(__name__)

STATE = "trainer.json"
"""File of a checkpoint that holds the applied updates."""


class Learner(ABC):
    """A data-parallel rank that scores response tokens with its model, and trains it.

    All ranks of a world are called together, with the same arguments. A world of one works alone. A subclass says
    which model it is, and what its loss.
    """

    def __init__(
        self,
        config: Config,
        settings: TrainerConfig,
        epochs: int,
        rank: int,
        world_size: int,
        master_address: str,
        master_port: int,
        trainable: bool = True,
        idle: int = 0,
    ) -> None:
        """
        Args:
            settings: of the optimizer and of the micro-batches.
            epochs: how often an update goes through its batch.
            idle: updates at the start of the run in which nothing trains.
            trainable: false: there is no optimizer, and nothing but scoring.

        Raises:
            ValueError: a rank, world size or port that cannot be.
        """
        cpu_platform.install()
        torch.set_num_threads(config.hardware.trainer_threads)
        self.config, self.settings, self.epochs = config, settings, epochs
        self.rank, self.world_size = rank, world_size
        self.device = join_world(rank, world_size, master_address, master_port, config.seed)
        dtype = getattr(torch, config.model.dtype)
        self.model, self.bridge = self._load_model(dtype)
        self.trainable = trainable
        if trainable:
            self.distributed = distribute(self.model)
            self.optimizer = make_optimizer(settings, self.distributed, dtype)
            self.schedule = Schedule(settings, self.optimizer, idle)
            self.memory = LentMemory(self.model, self.distributed, self.optimizer)
        else:
            self.model.requires_grad_(False)
        self._applied = AppliedUpdates()

    @abstractmethod
    def _load_model(self, dtype: torch.dtype) -> tuple[GPTModel, Bridge]:
        """The model, and the bridge that names its weights."""

    @abstractmethod
    def _accumulate_gradients(self, batch: pl.DataFrame, rows: list[int], totals: Totals) -> dict[str, float]:
        """Backward passes over this rank's share of a mini-batch's rows; its metrics, the same on all ranks.

        Args:
            totals: of the mini-batch.
        """

    def policy_version(self) -> int | None:
        """Number of updates applied, which is the number of iterations trained.

        None where an update broke off after it had changed weights: they are no version's.
        """
        return self._applied.version

    def update(self, iteration: int, digest: str, batch: pl.DataFrame) -> dict[str, Any]:
        """Apply one TrainBatch: epochs x `mini_batches` optimizer steps. Returns the report.

        An update that was applied before returns its recorded report and changes nothing. A batch in which no
        token trains counts as an update without an optimizer step (`skipped`). A step whose gradient is not finite is
        not taken, which leaves weights and optimizer as they were; `skipped_steps` counts such steps.

        The report has the fields of `rlcore.reports.UpdateReport`. Its metrics are those of
        `rlcore.trainer.report.over_steps` of the steps that were taken; `grad_norm` is before clipping, and
        `tokens_per_second` counts prompt and response tokens of the rows that train, once per epoch.

        Args:
            iteration: policy_version() + 1, or one that was applied.
            digest: of the batch.

        Raises:
            UpdateRefused: out of order, applied with another digest, not trainable, or an attempt at it broke off
                after it had changed weights.
            NonFiniteGradient: the third step in a row, this update's or those before it, that would not be taken.
        """
        if not self.trainable:
            raise UpdateRefused(f"update {iteration}: this is the frozen reference")
        report = self._applied.report(iteration, digest)
        if report is None:
            report = self._train(iteration, batch)
            self._applied.record(iteration, digest, report)
            cpu_platform.release_heap()
        return report

    def offload(self) -> int:
        """Give this rank's device memory to others until `reload`, which every method that computes calls first.

        Returns the bytes: 0 where the weights are in host memory anyway, and of the frozen reference.
        """
        return self.memory.lend() if self.trainable and self.device.type == "cuda" else 0

    def reload(self) -> None:
        """Take the memory back, with the same contents."""
        if self.trainable:
            self.memory.take_back()

    def save_checkpoint(self, directory: str) -> None:
        """Write everything that training goes on from. It counts as a checkpoint after `checkpoint.publish`."""
        self.reload()
        path = Path(directory)
        path.mkdir(parents=True, exist_ok=True)
        save_state(path, self.distributed, self.optimizer)
        if self.rank == 0:
            (path / STATE).write_text(json.dumps(self._applied.dump(), indent=1))

    def load_checkpoint(self, directory: str) -> None:
        """Go back, or on, to what `save_checkpoint` wrote; learning rate and the like are the configuration's.

        Megatron loads a damaged file without an error: `checkpoint.verify` comes first.
        """
        self.reload()
        path = Path(directory)
        load_state(path, self.distributed, self.optimizer)
        self._applied = AppliedUpdates.load(json.loads((path / STATE).read_text()))

    @torch.no_grad()
    def _score_responses(self, name: str, batch: pl.DataFrame) -> pl.DataFrame:
        """sample_id and, under `name`, the model's first output at each response token: this rank's share of the rows.

        Args:
            batch: with columns sample_id, prompt_ids and response_ids.
        """
        self.model.eval()
        answered = (batch["response_ids"].list.len() > 0).to_list()
        scores: dict[int, list[float]] = {}
        if self.rank == 0:
            scores = {row: [] for row, has_tokens in enumerate(answered) if not has_tokens}
        for micro in self._micro_batches(batch, [row for row, has_tokens in enumerate(answered) if has_tokens]):
            for row, values, mask in zip(micro.rows, self._forward(micro)[0], micro.response_mask, strict=True):
                scores[row] = values[mask].tolist()
        cpu_platform.release_heap()
        mine = sorted(scores)
        column = pl.Series(name, [scores[row] for row in mine], dtype=pl.List(pl.Float32))
        return batch[mine].select("sample_id", column)

    def _forward(self, micro: MicroBatch) -> list[Tensor]:
        """The model's outputs at the response tokens, (B, T) float32 each."""
        model = self.distributed if self.trainable else self.model
        outputs = model(micro.input_ids, micro.positions, micro.layout, labels=micro.labels, loss_mask=micro.scored)
        return [micro.align(values) for values in outputs]

    def _micro_batches(self, batch: pl.DataFrame, rows: list[int]) -> Iterator[MicroBatch]:
        """This rank's share of the rows."""
        packed = pack(
            rows,
            RowLengths.of(batch),
            share_prompts=self.settings.share_prompts,
            budget=self.settings.max_tokens_per_micro_batch,
            rank=self.rank,
            ranks=self.world_size,
        )
        for trees in packed:
            yield collate(batch, trees).to(self.device)

    def _rows_that_train(self, iteration: int, batch: pl.DataFrame) -> list[int]:
        return [row for row, trains in enumerate(batch["loss_mask"].list.any()) if trains]

    def _prepared(self, batch: pl.DataFrame, rows: list[int]) -> pl.DataFrame:
        """The batch with what the loss needs to know of all its rows together."""
        return batch

    def _train(self, iteration: int, batch: pl.DataFrame) -> dict[str, Any]:
        started = time.monotonic()
        self.reload()
        rows = self._rows_that_train(iteration, batch)
        batch = self._prepared(batch, rows)
        totals = self._totals(batch, rows)
        schedule = optimizer_steps(
            rows,
            epochs=self.epochs,
            mini_batches=self.config.algorithm.mini_batches,
            seed=self.config.seed,
            iteration=iteration,
        )
        self.model.train()
        self._applied.start()
        learning_rate = self.schedule.apply(iteration - 1)
        tried = [self._step(iteration, batch, mini_batch) for mini_batch in schedule]
        steps = [metrics for metrics in tried if metrics is not None]
        measured = steps or [{"grad_norm": 0.0, **self._accumulate_gradients(batch, [], totals)}]
        seconds = time.monotonic() - started
        return {
            "iteration": iteration,
            "policy_version": iteration,
            "optimizer_steps": len(steps),
            "skipped": not steps,
            "seconds": seconds,
            "metrics": {
                "learning_rate": learning_rate,
                "skipped_steps": len(tried) - len(steps),
                "num_tokens": totals.num_tokens,
                "num_sequences": totals.num_sequences,
                "tokens_per_second": self.epochs * RowLengths.of(batch).total(rows) / seconds,
                **over_steps(measured),
            },
        }

    def _step(self, iteration: int, batch: pl.DataFrame, rows: list[int]) -> dict[str, float] | None:
        """One optimizer step, in the denominators of its own rows; its metrics. None where it is not taken."""
        zero_gradients(self.distributed, self.optimizer)
        metrics = self._accumulate_gradients(batch, rows, self._totals(batch, rows))
        # The optimizer's temporaries are as large as the activations were: not both at once.
        cpu_platform.release_heap()
        norm = reduce_gradients(self.distributed, self.optimizer)
        if not math.isfinite(norm):
            logger.warning("update %d: an optimizer step is skipped, its gradient norm is %s", iteration, norm)
            self._applied.skip(iteration, norm)
            return None
        self._applied.step(iteration)
        self.optimizer.step()
        return {**metrics, "grad_norm": norm}

    def _totals(self, batch: pl.DataFrame, rows: list[int]) -> Totals:
        return Totals.of(batch[rows], self.config.rollout.response_length)
