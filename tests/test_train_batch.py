"""Rewards to the batch that the update trains on."""

from __future__ import annotations

import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlcore.batches import RolloutBatch, TrainBatch, validate
from rlcore.config import AlgorithmConfig
from rlcore.padding import padded, unpadded
from rlcore.train_batch import assemble_train_batch

FLOATS = pl.List(pl.Float32)


def rollouts(*groups: list[int]) -> pl.DataFrame:
    """A RolloutBatch with the given response lengths, group by group."""
    rows = [(f"p{g}", f"p{g}#{i}", length) for g, group in enumerate(groups) for i, length in enumerate(group)]
    frame = pl.DataFrame(
        {
            "sample_id": [sample for _, sample, _ in rows],
            "prompt_id": [prompt for prompt, _, _ in rows],
            "domain": "d",
            "prompt_ids": [[1, 2]] * len(rows),
            "response_ids": [list(range(length)) for *_, length in rows],
            "loss_mask": [[True] * length for *_, length in rows],
            "rollout_logprobs": [[-0.5] * length for *_, length in rows],
            "policy_versions": [[0] * length for *_, length in rows],
            "finish_reason": "stop",
            "response_text": "x",
            "seconds": 0.1,
        },
        schema_overrides={
            "prompt_ids": pl.List(pl.Int32),
            "response_ids": pl.List(pl.Int32),
            "loss_mask": pl.List(pl.Boolean),
            "rollout_logprobs": FLOATS,
            "policy_versions": pl.List(pl.Int32),
        },
    )
    return validate(frame, RolloutBatch)


def rewards(batch: pl.DataFrame, values: list[float | None]) -> pl.DataFrame:
    return batch.select("sample_id", reward=pl.Series(values, dtype=pl.Float64))


def train_batch(batch: pl.DataFrame, values: list[float | None], **algorithm: object) -> pl.DataFrame:
    settings = AlgorithmConfig.model_validate(algorithm)
    return validate(assemble_train_batch(batch, rewards(batch, values), None, None, settings), TrainBatch)


def test_grpo_puts_the_groups_normalised_reward_on_every_token() -> None:
    # Mean 1/2, unbiased std sqrt(1/2): ±(1/2)/0.70711 = ±0.70711.
    batch = train_batch(rollouts([2, 1]), [1.0, 0.0])
    assert batch["advantages"].to_list() == [
        pytest.approx([0.70711, 0.70711], abs=1e-4),
        pytest.approx([-0.70711], abs=1e-4),
    ]


def test_the_engines_logprobs_stand_for_the_old_ones_unless_recomputed() -> None:
    batch = rollouts([2])
    assert train_batch(batch, [1.0])["old_logprobs"].to_list() == [[-0.5, -0.5]]
    recomputed = batch.select("sample_id", logprobs=pl.Series([[-0.25, -0.125]], dtype=FLOATS))
    assembled = assemble_train_batch(batch, rewards(batch, [1.0]), recomputed, None, AlgorithmConfig())
    assert assembled["old_logprobs"].to_list() == [[-0.25, -0.125]]


def test_a_response_without_a_reward_trains_nothing_and_enters_no_baseline() -> None:
    batch = train_batch(rollouts([1, 1, 1]), [1.0, 0.0, None])
    assert batch["drop_reason"].to_list() == [None, None, "no_reward"]
    assert batch["loss_mask"].to_list() == [[True], [True], [False]]
    assert batch["advantages"].to_list() == [
        pytest.approx([0.70711], abs=1e-4),
        pytest.approx([-0.70711], abs=1e-4),
        [0.0],
    ]


def test_groups_without_variance_are_dropped_only_if_asked() -> None:
    batch = rollouts([1, 1], [1, 1])
    values: list[float | None] = [1.0, 1.0, 0.0, 1.0]
    assert train_batch(batch, values)["drop_reason"].to_list() == ["no_variance", "no_variance", None, None]
    kept = train_batch(batch, values, drop_zero_variance_groups=False)
    assert kept["drop_reason"].to_list() == [None] * 4
    assert kept["loss_mask"].to_list() == [[True]] * 4


def test_an_empty_response_is_dropped_by_name() -> None:
    assert train_batch(rollouts([0, 2, 1]), [0.0, 1.0, 0.0])["drop_reason"].to_list() == ["empty_response", None, None]


def test_reinforce_discounts_the_reward_from_the_last_token_back() -> None:
    batch = train_batch(rollouts([3]), [1.0], adv_estimator="reinforce", gamma=0.5)
    assert batch["advantages"].to_list() == [[0.25, 0.5, 1.0]]


def test_kl_in_the_reward_is_charged_per_token() -> None:
    batch = rollouts([2])
    reference = batch.select("sample_id", logprobs=pl.Series([[-1.5, -0.5]], dtype=FLOATS))
    settings = AlgorithmConfig(adv_estimator="reinforce", init_kl_coef=0.1)
    assembled = assemble_train_batch(batch, rewards(batch, [1.0]), None, reference, settings)
    # k1 = log π − log π_ref = (1, 0): token rewards (−0.1, 1), returns (0.9, 1).
    assert assembled["advantages"].to_list() == [pytest.approx([0.9, 1.0])]


def test_kl_in_the_reward_goes_with_group_advantages() -> None:
    batch = rollouts([2, 1])
    reference = batch.select("sample_id", logprobs=pl.Series([[-1.5, -0.5], [-0.5]], dtype=FLOATS))
    assembled = assemble_train_batch(
        batch, rewards(batch, [1.0, 0.0]), None, reference, AlgorithmConfig(init_kl_coef=0.1)
    )
    # The group's ±0.70711; the first token of the first response pays 0.1 · (−0.5 + 1.5) besides.
    assert assembled["advantages"].to_list() == [
        pytest.approx([0.60711, 0.70711], abs=1e-4),
        pytest.approx([-0.70711], abs=1e-4),
    ]


@given(st.lists(st.lists(st.floats(-100, 100, width=32), max_size=6), min_size=1, max_size=6))
def test_padding_and_unpadding_are_inverse(rows: list[list[float]]) -> None:
    column = pl.Series("x", rows, dtype=FLOATS)
    values = padded(column, fill=7.0)
    assert values.shape == (len(rows), max(len(row) for row in rows))
    assert unpadded(values, like=column).to_list() == column.to_list()
    assert torch.all(values[padded(column.list.eval(pl.element().is_not_null())) == 0] == 7.0)
