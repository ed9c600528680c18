"""Prompts to requests, generations to batches."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import polars as pl

from rlcore.batches import EvalBatch
from rlcore.config import RolloutConfig
from rlcore.generation.interface import Generation, GenerationRequest


def response_seed(prompt_seed: int, index: int) -> int:
    """Seed of response `index` of a prompt's group: 63 bits, the same in every process."""
    digest = hashlib.blake2b(f"{prompt_seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def group_requests(prompts: pl.DataFrame, rollout: RolloutConfig) -> list[GenerationRequest]:
    """A PromptBatch to one request per response: `num_return_sequences_in_group` for each prompt."""
    return [
        GenerationRequest(
            request_id=f"{prompt_id}#{index}",
            prompt_ids=prompt_ids,
            max_tokens=rollout.response_length,
            temperature=rollout.temperature,
            seed=response_seed(seed, index),
        )
        for prompt_id, prompt_ids, seed in prompts.select("prompt_id", "prompt_ids", "seed").iter_rows()
        for index in range(rollout.num_return_sequences_in_group)
    ]


def greedy_requests(prompts: pl.DataFrame, rollout: RolloutConfig, suffix: str = "") -> list[GenerationRequest]:
    """A PromptBatch to one greedy request per prompt, named by its prompt and the suffix."""
    return [
        GenerationRequest(f"{prompt_id}{suffix}", prompt_ids, rollout.response_length, temperature=0.0, seed=0)
        for prompt_id, prompt_ids in prompts.select("prompt_id", "prompt_ids").iter_rows()
    ]


def evaluation_batch(prompts: pl.DataFrame, generations: Sequence[Generation]) -> pl.DataFrame:
    """Generations of `greedy_requests` as an EvalBatch, without its reward columns."""
    answers = _frame(generations, "prompt_id")
    last_message = pl.col("messages").list.last().struct.field("content").alias("prompt_text")
    questions = prompts.select("prompt_id", "domain", "tag", last_message, "ground_truth")
    joined = answers.join(questions, on="prompt_id", how="left", maintain_order="left")
    return joined.select(name for name in EvalBatch.to_schema().columns if name in joined.columns)


def _frame(generations: Sequence[Generation], key: str) -> pl.DataFrame:
    return pl.DataFrame(
        {
            key: [g.request_id for g in generations],
            "response_ids": [g.response_ids for g in generations],
            "rollout_logprobs": [g.logprobs for g in generations],
            "policy_versions": [g.policy_versions for g in generations],
            "finish_reason": [g.finish_reason for g in generations],
            "response_text": [g.text for g in generations],
            "seconds": [g.seconds for g in generations],
        },
        schema_overrides={
            "response_ids": pl.List(pl.Int32),
            "rollout_logprobs": pl.List(pl.Float32),
            "policy_versions": pl.List(pl.Int32),
        },
    )
