"""One way to compute a training step, measured in a process of its own. benchmarks/trainer.py starts it.

    python benchmarks/processes/trainer_step.py VARIANT STEPS RESULT.json CONFIG.yaml BATCH.parquet [BATCH.parquet ...]

A step is a TrainBatch once through: forward passes, the clipped policy loss, backward passes, clipping of the
gradient's norm, and AdamW on float32 main weights. STEPS of them are timed of the first batch, one of each other.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import polars as pl
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from rlcore.algorithms import LossInputs, aggregate, logprobs_from_logits, policy_loss
from rlcore.compose import load
from rlcore.config import Config, model_directory
from rlcore.padding import padded, unpadded
from rlcore.trainer.microbatches import MicroBatch, collate
from rlcore.trainer.packing import RowLengths, Tree
from rlcore.trainer.rank import TrainerRank

HEADS = ("embed_tokens", "lm_head", "word_embeddings", "output_layer")
"""In the names of the vocabulary's parameters, of both libraries."""


class Trainer(Protocol):
    """A model that trains."""

    @property
    def model(self) -> torch.nn.Module: ...

    def logprobs(self, batch: pl.DataFrame) -> pl.DataFrame: ...

    def step(self, batch: pl.DataFrame) -> float:
        """One optimizer step on the whole batch; the gradient's norm before clipping."""

    def work(self, batch: pl.DataFrame) -> dict[str, int]:
        """What a step computes: `positions` through the layers, `scored` through the head, `pairs` of query and key."""


class Ours(TrainerRank):
    """The trainer as it is."""

    @property
    def model(self) -> torch.nn.Module:
        return self.pieces[0]

    def step(self, batch: pl.DataFrame) -> float:
        version = self.policy_version()
        assert version is not None
        return float(self.update(version + 1, "", batch)["metrics"]["grad_norm"])

    def work(self, batch: pl.DataFrame) -> dict[str, int]:
        micro_batches = self._micro_batches(batch, list(range(len(batch))))
        return {
            "positions": sum(micro.input_ids.numel() for micro in micro_batches),
            "scored": sum(len(micro.scored) for micro in micro_batches),
            # A token sees every position up to its own, in its branch and the prompt: as many as its position says.
            "pairs": sum(int((micro.positions + 1).sum()) for micro in micro_batches),
        }


class OursPadded(Ours):
    """The trainer, its rows padded to the longest of the batch: each row is a tree, the padding the tree's end."""

    def _micro_batches(self, batch: pl.DataFrame, rows: list[int]) -> list[MicroBatch]:
        lengths = RowLengths.of(batch)
        trees = [Tree((row,), lengths.prompts[row] + lengths.responses[row] - 1) for row in rows]
        length = max(tree.tokens for tree in trees)
        at_once = max(1, self.settings.max_tokens_per_micro_batch // length)
        return [
            pad(collate(batch, trees[first : first + at_once]), length).to(self.device)
            for first in range(0, len(trees), at_once)
        ]


def pad(micro: MicroBatch, length: int) -> MicroBatch:
    """The same rows, each filled up to `length` tokens with what nothing scores."""
    trees, branches = micro.layout
    counts = torch.unique_consecutive(trees, return_counts=True)[1]
    places = torch.arange(len(trees)) + (torch.arange(len(counts)) * length - counts.cumsum(0) + counts)[trees]
    size = len(counts) * length
    return replace(
        micro,
        input_ids=torch.zeros(size, dtype=torch.int64).index_copy(0, places, micro.input_ids[0])[None],
        positions=torch.arange(length).repeat(len(counts))[None],
        layout=torch.stack(
            [
                torch.arange(len(counts)).repeat_interleave(length),
                torch.ones(size, dtype=torch.int64).index_copy(0, places, branches),
            ]
        ),
        scored=places[micro.scored],
    )


class HuggingFace:
    """transformers' model in the run's data type, with prompts padded on the left and responses on the right.

    The head computes the response positions only. Gradients add up in the model's data type; AdamW is torch's fused
    one.
    """

    def __init__(self, config: Config) -> None:
        torch.set_num_threads(config.hardware.trainer_threads)
        self.config, self.settings = config, config.trainer
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        dtype = getattr(torch, config.model.dtype)
        directory = model_directory(config.model)
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).to(self.device)
        self.main = [parameter.detach().float().clone() for parameter in self.model.parameters()]
        self.optimizer = torch.optim.AdamW(
            self.main,
            lr=self.settings.learning_rate,
            betas=(self.settings.adam_beta1, self.settings.adam_beta2),
            weight_decay=self.settings.weight_decay,
            fused=True,
        )

    @torch.no_grad()
    def logprobs(self, batch: pl.DataFrame) -> pl.DataFrame:
        width = int(batch["response_ids"].list.len().max())  # type: ignore[arg-type]
        scores = torch.zeros(len(batch), width)
        for rows in self._micro_batches(batch):
            found = self._response_logprobs(batch[rows]).cpu()
            scores[rows.start : rows.stop, : found.shape[1]] = found
        return batch.select("sample_id", logprobs=unpadded(scores, like=batch["response_ids"]))

    def step(self, batch: pl.DataFrame) -> float:
        num_tokens = int(batch["loss_mask"].list.len().sum())
        for rows in self._micro_batches(batch):
            part = batch[rows]
            inputs = LossInputs(
                logprobs=self._response_logprobs(part),
                old_logprobs=padded(part["old_logprobs"]).to(self.device),
                advantages=padded(part["advantages"]).to(self.device),
                mask=padded(part["loss_mask"]).to(self.device),
            )
            token_loss, _ = policy_loss(self.config.algorithm.policy_loss, inputs)
            aggregate(token_loss, inputs.mask, "token-mean", num_tokens=num_tokens).backward()
        for main, parameter in zip(self.main, self.model.parameters(), strict=True):
            main.grad = parameter.grad.float()
        self.model.zero_grad()
        norm = float(torch.nn.utils.clip_grad_norm_(self.main, self.settings.max_grad_norm))
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            for main, parameter in zip(self.main, self.model.parameters(), strict=True):
                parameter.copy_(main)
        return norm

    def work(self, batch: pl.DataFrame) -> dict[str, int]:
        sizes = [(len(batch[rows]), *_widths(batch[rows])) for rows in self._micro_batches(batch)]
        return {
            "positions": sum(count * (prompt + response) for count, prompt, response in sizes),
            "scored": sum(count * response for count, _, response in sizes),
            "pairs": sum(
                count * (prompt + response) * (prompt + response + 1) // 2 for count, prompt, response in sizes
            ),
        }

    def _micro_batches(self, batch: pl.DataFrame) -> Iterator[slice]:
        """As many rows at once as the token budget has room for when they are padded."""
        at_once = max(1, self.settings.max_tokens_per_micro_batch // sum(_widths(batch)))
        return (slice(first, min(first + at_once, len(batch))) for first in range(0, len(batch), at_once))

    def _response_logprobs(self, rows: pl.DataFrame) -> Tensor:
        """(B, T) float32, anything where there is no token."""
        prompts, responses = rows["prompt_ids"], rows["response_ids"]
        prompt = padded(prompts.list.reverse(), fill=-1).flip(1)
        response = padded(responses, fill=-1)
        tokens = torch.cat([prompt, response], 1).long().to(self.device)
        mask = tokens >= 0
        tokens = tokens.clamp(min=0)
        width = response.shape[1]
        logits = self.model(
            input_ids=tokens,
            attention_mask=mask.long(),
            position_ids=(mask.cumsum(1) - 1).clamp(min=0),
            logits_to_keep=width + 1,
            use_cache=False,
        ).logits[:, :-1]
        return logprobs_from_logits(logits, tokens[:, -width:], self.config.rollout.temperature)


def _widths(rows: pl.DataFrame) -> tuple[int, int]:
    """Of the longest prompt and of the longest response, in tokens."""
    lengths = RowLengths.of(rows)
    return max(lengths.prompts), max(lengths.responses)


def make_trainer(variant: str, config: Config) -> Trainer:
    if variant == "hugging-face":
        return HuggingFace(config)
    if variant == "padded":
        return OursPadded(config)
    trainer = config.trainer.model_copy(update={"share_prompts": variant == "shared"})
    return Ours(config.model_copy(update={"trainer": trainer}))


def measure(trainer: Trainer, config: Config, batch: pl.DataFrame, steps: int) -> dict[str, Any]:
    """One step to warm up, then `steps` that are timed. π_old is the variant's own policy before the first."""
    old = batch.select("sample_id").join(trainer.logprobs(batch), on="sample_id", how="left", maintain_order="left")
    batch = batch.with_columns(old_logprobs=old["logprobs"], rollout_logprobs=old["logprobs"])
    norm = trainer.step(batch)
    seconds = []
    for _ in range(steps):
        started = time.perf_counter()
        trainer.step(batch)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    work = trainer.work(batch)
    return {
        "seconds": seconds,
        "grad_norm": norm,
        "tokens": RowLengths.of(batch).total(range(len(batch))),
        "flops": flops(trainer.model, config, work),
        "peak_bytes": peak_bytes(),
        **work,
    }


def flops(model: torch.nn.Module, config: Config, work: dict[str, int]) -> int:
    """Of a forward and a backward pass, which costs twice the forward's.

    6·(parameters of the layers)·positions + 6·hidden·vocabulary·scored + 12·layers·heads·head size·pairs

    What a pass computes twice to save memory counts once; norms, softmax, loss and optimizer do not count.
    """
    shape = AutoConfig.from_pretrained(model_directory(config.model))
    parameters = model.named_parameters()
    layers = sum(weight.numel() for name, weight in parameters if not any(part in name for part in HEADS))
    head_size = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    attention = 12 * shape.num_hidden_layers * shape.num_attention_heads * head_size * work["pairs"]
    return 6 * layers * work["positions"] + 6 * shape.hidden_size * shape.vocab_size * work["scored"] + attention


def peak_bytes() -> int:
    """Of this process on the CPU, or of its tensors on a GPU."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(variant: str, steps: str, result: str, config_file: str, *batches: str) -> None:
    config = load(Path(config_file))
    trainer = make_trainer(variant, config)
    measured = [
        measure(trainer, config, pl.read_parquet(batch), 1 if number else int(steps))
        for number, batch in enumerate(batches)
    ]
    Path(result).write_text(json.dumps(measured))


if __name__ == "__main__":
    main(*sys.argv[1:])
