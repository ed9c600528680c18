"""Prompts as they come from the datasets, and batches as the stages take them."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from rlcore.batches import GREEDY, RolloutBatch, is_greedy
from rlcore.config import Config
from rlcore.generation.interface import GenerationRequest
from rlcore.generation.requests import greedy_requests, group_requests
from rlcore.rewards.interface import Outcome
from rlcore.rollout.groups import Group, Prompt


def prompts_of(batch: pl.DataFrame, config: Config) -> Iterator[tuple[Prompt, list[GenerationRequest]]]:
    """A PromptBatch's prompts, each with a request for every response: those of its group, and ReMax's greedy one."""
    text = pl.col("messages").list.last().struct.field("content")
    rows = batch.select("prompt_id", "domain", "prompt_ids", "ground_truth", text)
    sampled, size = group_requests(batch, config.rollout), config.rollout.num_return_sequences_in_group
    uses_greedy = config.algorithm.uses_greedy_baseline
    greedy = greedy_requests(batch, config.rollout, suffix=GREEDY) if uses_greedy else []
    for index, (prompt_id, domain, prompt_ids, ground_truth, content) in enumerate(rows.iter_rows()):
        prompt = Prompt(prompt_id, domain, tuple(prompt_ids), ground_truth, content)
        yield prompt, sampled[index * size : (index + 1) * size] + greedy[index : index + 1]


def rollouts_of(groups: list[Group], graded_under: str) -> pl.DataFrame:
    """A RolloutBatch of complete groups, in their order.

    Args:
        graded_under: digest of the rewards' configuration.
    """
    schema = {name: column.dtype.type for name, column in RolloutBatch.to_schema().columns.items()}
    rows = [row for group in groups for row in _rows(group)]
    batch = pl.DataFrame({name: [row.get(name) for row in rows] for name in schema}, schema=schema)
    trains = pl.col("response_ids").list.eval(pl.element().is_not_null())
    nowhere = pl.col("response_ids").list.eval(pl.element().is_null())
    return batch.with_columns(
        loss_mask=pl.when(is_greedy()).then(nowhere).otherwise(trains), graded_under=pl.lit(graded_under)
    )


def _rows(group: Group) -> Iterator[dict[str, object]]:
    prompt = group.prompt
    for response in group.responses:
        generation, outcome = response.generation, response.outcome
        assert generation is not None and outcome is not None
        yield {
            "sample_id": response.request.request_id,
            "prompt_id": prompt.prompt_id,
            "domain": prompt.domain,
            "prompt_text": prompt.text,
            "prompt_ids": prompt.prompt_ids,
            "ground_truth": prompt.ground_truth,
            "response_ids": generation.response_ids,
            "rollout_logprobs": generation.logprobs,
            "policy_versions": generation.policy_versions,
            "finish_reason": generation.finish_reason,
            "response_text": generation.text,
            "seconds": generation.seconds,
            "grade": _grade(outcome),
        }


def _grade(outcome: Outcome) -> dict[str, object]:
    """The columns of a RewardBatch beside its key."""
    return {
        "reward": outcome.reward,
        "reward_status": outcome.status,
        "components": [{"name": name, "value": value} for name, value in outcome.components.items()],
        "detail": outcome.detail,
        "seconds": outcome.seconds,
    }


def outcomes_of(rewards: pl.DataFrame) -> dict[str, Outcome]:
    """A RewardBatch's rows by sample_id."""
    columns = ("sample_id", "reward_status", "reward", "components", "detail", "seconds")
    return {
        sample_id: Outcome(status, reward, {part["name"]: part["value"] for part in components}, detail, seconds)
        for sample_id, status, reward, components, detail, seconds in rewards.select(columns).iter_rows()
    }
