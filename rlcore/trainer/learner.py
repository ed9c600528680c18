"""A model that trains: its ranks, its optimizer, and the count of updates it has applied."""

from __future__ import annotations

import json
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import torch
from mbridge.core.bridge import Bridge
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_model import GPTModel
from torch import Tensor

from rlcore.config import Config, TrainerConfig
from rlcore.progress import counting
from rlcore.trainer import cpu_platform, torch_adamw
from rlcore.trainer.layout import Layout
from rlcore.trainer.microbatches import MicroBatch, collate
from rlcore.trainer.minibatches import optimizer_steps
from rlcore.trainer.objective import Totals
from rlcore.trainer.offload import LentMemory
from rlcore.trainer.optimizer import Sharding, distribute, make_optimizer, reduce_gradients, take_step, zero_gradients
from rlcore.trainer.packing import RowLengths, pack
from rlcore.trainer.passes import score_passes, train_passes
from rlcore.trainer.report import over_steps
from rlcore.trainer.schedule import Schedule
from rlcore.trainer.state import check_layout, load_state, save_state
from rlcore.trainer.updates import AppliedUpdates, UpdateRefused
from rlcore.trainer.world import computes_outputs, join_world

logger = logging.getLogger(__name__)

STATE = "trainer.json"
"""File of a checkpoint that holds the applied updates."""


class Learner(ABC):
    """A rank that scores response tokens with its piece of a model, and trains it.

    All ranks of a world are called together, with the same arguments. A world of one works alone. A subclass says
    which model it is, and what its loss.
    """

    def __init__(
        self,
        config: Config,
        settings: TrainerConfig,
        epochs: int,
        rank: int,
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
            ValueError: a rank or port that cannot be.
        """
        cpu_platform.install()
        torch_adamw.install()
        torch.set_num_threads(config.hardware.trainer_threads)
        self.config, self.settings, self.epochs = config, settings, epochs
        self.rank = rank
        self.device = join_world(settings, rank, master_address, master_port, config.seed)
        dtype = getattr(torch, config.model.dtype)
        self.pieces, self.bridge = self._load_model(dtype)
        self.trainable = trainable
        if trainable:
            self.distributed = distribute(self.pieces)
            self.optimizer = make_optimizer(settings, self.distributed, dtype)
            self.schedule = Schedule(settings, self.optimizer, idle)
            self.memory = LentMemory(self.distributed, self.optimizer)
        else:
            for piece in self.pieces:
                piece.requires_grad_(False)
        self._applied = AppliedUpdates()

    @abstractmethod
    def _load_model(self, dtype: torch.dtype) -> tuple[Sequence[GPTModel], Bridge]:
        """This rank's pieces of the model (several with virtual pipeline stages), and the bridge that names weights."""

    @abstractmethod
    def _objective(
        self, batch: pl.DataFrame, totals: Totals, micro: MicroBatch, outputs: list[Tensor]
    ) -> tuple[Tensor, Any]:
        """The loss of a micro-batch from the model's outputs, (B, T) float32 each; what the metrics need of it.

        Args:
            totals: of the whole mini-batch, over all ranks.
        """

    @abstractmethod
    def _metrics(self, parts: list[Any]) -> dict[str, float]:
        """A mini-batch's metrics, the same on all ranks, from what `_objective` gave of this rank's micro-batches."""

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
        save_state(path, self.distributed, self.optimizer, self._sharding)
        if self.rank == 0:
            layout = self.settings.model_dump(mode="json", include=set(Layout.model_fields))
            state = {"sharding": self._sharding, "layout": layout, **self._applied.dump()}
            (path / STATE).write_text(json.dumps(state, indent=1))

    def load_checkpoint(self, directory: str) -> None:
        """Go back, or on, to what `save_checkpoint` wrote; learning rate and the like are the configuration's.

        Megatron loads a damaged file without an error: `checkpoint.verify` comes first.

        Raises:
            CheckpointFailed: it was saved in a layout that cannot be loaded in this one, or cannot be read.
        """
        self.reload()
        path = Path(directory)
        state = json.loads((path / STATE).read_text())
        check_layout(path, Layout.model_validate(state["layout"]), self.settings, state["sharding"])
        load_state(path, self.distributed, self.optimizer, state["sharding"])
        self._applied = AppliedUpdates.load(state)

    @torch.no_grad()
    def _score_responses(self, name: str, batch: pl.DataFrame) -> pl.DataFrame:
        """sample_id and, under `name`, the model's first output at each response token: this rank's share of the rows.

        Args:
            batch: with columns sample_id, prompt_ids and response_ids.
        """
        for piece in self.pieces:
            piece.eval()
        answered = (batch["response_ids"].list.len() > 0).to_list()
        pieces = self.distributed if self.trainable else self.pieces
        scored = score_passes(
            pieces, self._micro_batches(batch, [row for row, tokens in enumerate(answered) if tokens])
        )
        cpu_platform.release_heap()
        scores: dict[int, list[float]] = {}
        if self.rank == 0:
            scores = {row: [] for row, has_tokens in enumerate(answered) if not has_tokens}
        if computes_outputs():
            for micro, outputs in scored:
                for row, values, mask in zip(micro.rows, outputs, micro.response_mask, strict=True):
                    scores[row] = values[mask].tolist()
        mine = sorted(scores)
        column = pl.Series(name, [scores[row] for row in mine], dtype=pl.List(pl.Float32))
        return batch[mine].select("sample_id", column)

    def _micro_batches(self, batch: pl.DataFrame, rows: list[int]) -> list[MicroBatch]:
        """This rank's share of the rows."""
        settings = self.settings
        number_of = None
        if settings.virtual_pipeline_model_parallel_size:
            number_of = settings.pipeline_model_parallel_size
        elif settings.expert_model_parallel_size > 1:
            # Ranks meet in every layer of experts.
            number_of = 1
        packed = pack(
            rows,
            RowLengths.of(batch),
            share_prompts=settings.share_prompts,
            budget=settings.max_tokens_per_micro_batch,
            rank=parallel_state.get_data_parallel_rank(),
            ranks=parallel_state.get_data_parallel_world_size(),
            number_of=number_of,
        )
        multiple_of = settings.tensor_model_parallel_size if settings.sequence_parallel else 1
        if settings.context_parallel_size > 1:
            multiple_of *= 2 * settings.context_parallel_size
        return [
            collate(batch, part.trees, multiple_of=multiple_of, counts=part.counts).to(self.device) for part in packed
        ]

    def _accumulate_gradients(self, batch: pl.DataFrame, rows: list[int], totals: Totals) -> dict[str, float]:
        """Backward passes over this rank's share of a mini-batch's rows; its metrics, the same on all ranks."""
        objective = partial(self._objective, batch, totals)
        return self._metrics(train_passes(self.distributed, self._micro_batches(batch, rows), objective))

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
        for piece in self.pieces:
            piece.train()
        self._applied.start()
        learning_rate = self.schedule.apply(iteration - 1)
        tried = []
        with counting("optimizer steps", len(schedule)) as done:
            for mini_batch in schedule:
                tried.append(self._step(iteration, batch, mini_batch))
                done(len(tried))
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
        take_step(self.optimizer, norm)
        return {**metrics, "grad_norm": norm}

    @property
    def _sharding(self) -> Sharding:
        """A model that every rank holds whole is saved in a third of the time and half of the memory."""
        reshardable = self.settings.reshardable_checkpoints or self.settings.divides_model
        return "fully_reshardable" if reshardable else "dp_reshardable"

    def _totals(self, batch: pl.DataFrame, rows: list[int]) -> Totals:
        return Totals.of(batch[rows], self.config.rollout.response_length)
