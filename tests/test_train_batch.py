"""Rewards to the batch that the update trains on."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlcore.batches import GRADE, GREEDY, RolloutBatch, TrainBatch, validate
from rlcore.config import Config
from rlcore.padding import padded, unpadded
from rlcore.reports import RunState
from rlcore.run_state import next_state
from rlcore.train_batch import assemble_train_batch
from tests.rollout_rows import PROMPT_AND_GRADE

FLOATS = pl.List(pl.Float32)


def rollouts(*groups: list[int]) -> pl.DataFrame:
    """A RolloutBatch with the given response lengths, group by group."""
    rows = [(f"p{g}", f"p{g}#{i}", length) for g, group in enumerate(groups) for i, length in enumerate(group)]
    frame = pl.DataFrame(
        {
            "sample_id": [sample for _, sample, _ in rows],
            "prompt_id": [prompt for prompt, _, _ in rows],
            "domain": "d",
            **PROMPT_AND_GRADE,
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
            "grade": pl.Struct(GRADE),
            "prompt_ids": pl.List(pl.Int32),
            "response_ids": pl.List(pl.Int32),
            "loss_mask": pl.List(pl.Boolean),
            "rollout_logprobs": FLOATS,
            "policy_versions": pl.List(pl.Int32),
        },
    )
    return validate(frame, RolloutBatch)


def rewards(batch: pl.DataFrame, values: Sequence[float | None]) -> pl.DataFrame:
    return batch.select("sample_id", reward=pl.Series(values, dtype=pl.Float64))


def config(shaping: object = None, **algorithm: object) -> Config:
    """A configuration of the one domain that the rollouts are of."""
    return Config.model_validate(
        {
            "run": "test",
            "iterations": 1,
            "eval_steps": 0,
            "model": {"path": "model"},
            "data": {"train": ["x"], "held_out": [], "prompt_length": 8, "domain_interleave_probs": {"d": 1.0}},
            "rollout": {"rollout_batch_size": 2, "num_return_sequences_in_group": 2, "response_length": 8},
            "rewards": {"d": {"grader": "math", "shaping": shaping}},
            "algorithm": algorithm,
            "hardware": {"trainer_threads": 1, "engine_threads": 1},
        }
    )


def assemble(
    settings: Config,
    batch: pl.DataFrame,
    values: Sequence[float | None],
    *,
    old: pl.DataFrame | None = None,
    reference: pl.DataFrame | None = None,
    critic: pl.DataFrame | None = None,
    previous: RunState | None = None,
) -> pl.DataFrame:
    iteration = previous.iteration + 1 if previous else 1
    assembled = assemble_train_batch(
        settings, iteration, batch, rewards(batch, values), old, reference, critic, previous
    )
    return validate(assembled, TrainBatch)


def train_batch(batch: pl.DataFrame, values: Sequence[float | None], **algorithm: object) -> pl.DataFrame:
    return assemble(config(**algorithm), batch, values)


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
    assembled = assemble(config(old_logprobs="recompute"), batch, [1.0], old=recomputed)
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
    values = [1.0, 1.0, 0.0, 1.0]
    dropped = train_batch(batch, values, masks={"group_std_above": 0.0})
    assert dropped["drop_reason"].to_list() == ["no_variance", "no_variance", None, None]
    kept = train_batch(batch, values)
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
    assembled = assemble(config(adv_estimator="reinforce", init_kl_coef=0.1), batch, [1.0], reference=reference)
    # k1 = log π − log π_ref = (1, 0): token rewards (−0.1, 1), returns (0.9, 1).
    assert assembled["advantages"].to_list() == [pytest.approx([0.9, 1.0])]


def test_kl_in_the_reward_goes_with_group_advantages() -> None:
    batch = rollouts([2, 1])
    reference = batch.select("sample_id", logprobs=pl.Series([[-1.5, -0.5], [-0.5]], dtype=FLOATS))
    assembled = assemble(config(init_kl_coef=0.1), batch, [1.0, 0.0], reference=reference)
    # The group's ±0.70711; the first token of the first response pays 0.1 · (−0.5 + 1.5) besides.
    assert assembled["advantages"].to_list() == [
        pytest.approx([0.60711, 0.70711], abs=1e-4),
        pytest.approx([-0.70711], abs=1e-4),
    ]


def test_gae_reads_the_critics_values() -> None:
    batch = rollouts([2, 1])
    values = batch.select("sample_id", values=pl.Series([[0.5, 0.75], [0.25]], dtype=FLOATS))
    settings = config(adv_estimator="gae", gamma=1.0, lambd=0.5)
    assembled = assemble(settings, batch, [1.0, None], critic=values)
    # δ = (0.75 - 0.5, 1 - 0.75), A = (0.25 + 0.5 · 0.25, 0.25), returns A + V. The second has no reward.
    assert assembled["values"].to_list() == [[0.5, 0.75], [0.25]]
    assert assembled["advantages"].to_list() == [pytest.approx([0.375, 0.25]), [0.0]]
    assert assembled["returns"].to_list() == [pytest.approx([0.875, 1.0]), [0.0]]


def test_remax_compares_with_the_greedy_response_which_does_not_train() -> None:
    sampled = rollouts([2, 1], [1])
    greedy = sampled.filter(pl.col("sample_id").is_in(["p0#0", "p1#0"])).with_columns(
        sample_id=pl.col("prompt_id") + GREEDY, loss_mask=pl.col("loss_mask").list.eval(pl.element() & False)
    )
    batch = train_batch(pl.concat([sampled, greedy]), [1.0, 0.0, 1.0, 0.25, None], adv_estimator="remax")
    assert batch["sample_id"].to_list() == ["p0#0", "p0#1", "p1#0"]
    # 1 − 0.25, 0 − 0.25; the greedy answer to p1 has no reward to compare with.
    assert batch["score"].to_list() == [0.75, -0.25, 0.0]


def test_advantages_are_whitened_over_the_tokens_of_the_batch_and_then_clipped() -> None:
    # Scores 3 and 0 on 1 and 3 tokens: mean 0.75, unbiased std 1.5, so 1.5 and −0.5; then at most 1.
    whitened = train_batch(rollouts([1], [3]), [3.0, 0.0], adv_estimator="reinforce", whiten_advantages=True)
    assert whitened["advantages"].to_list() == [pytest.approx([1.5]), pytest.approx([-0.5] * 3)]
    clipped = train_batch(
        rollouts([1], [3]), [3.0, 0.0], adv_estimator="reinforce", whiten_advantages=True, advantage_clip=1.0
    )
    assert clipped["advantages"].to_list() == [[1.0], pytest.approx([-0.5] * 3)]
    assert clipped["returns"].to_list() == [[3.0], [0.0] * 3]


def test_shaped_rewards_make_the_advantages_and_raw_ones_are_kept() -> None:
    batch = assemble(config({"clip_high": 0.5, "scale": 4.0}, adv_estimator="reinforce"), rollouts([1]), [1.0])
    assert batch["score"].to_list() == [2.0]
    assert batch["raw_reward"].to_list() == [1.0]


def test_hard_and_short_responses_weigh_more_if_asked() -> None:
    batch, values = rollouts([1, 3], [1, 3]), [1.0, 1.0, 0.0, 0.0]
    assert train_batch(batch, values)["sample_weight"].to_list() == [1.0] * 4
    # Difficulties 0 and 1: 0.5 and 2, scaled to a mean of 1.
    hard = train_batch(batch, values, difficulty_loss_weight=True)
    assert hard["sample_weight"].to_list() == pytest.approx([0.4, 0.4, 1.6, 1.6])
    # 1.5 for the shortest, 0.5 for the longest.
    short = train_batch(batch, values, length_loss_weight=True)
    assert short["sample_weight"].to_list() == pytest.approx([1.5, 0.5, 1.5, 0.5])


def test_the_length_of_a_response_is_the_tokens_that_the_policy_chose() -> None:
    batch = rollouts([4, 1]).with_columns(
        loss_mask=pl.Series([[True, False, False, True], [True]], dtype=pl.List(pl.Boolean))
    )
    # The baseline is (2·1 + 1·0) / 3, not (4·1 + 1·0) / 5; the weights are as of lengths 2 and 1.
    assembled = train_batch(batch, [1.0, 0.0], adv_estimator="opo", length_loss_weight=True)
    assert assembled["score"].to_list() == pytest.approx([1 / 3, -2 / 3])
    assert assembled["sample_weight"].to_list() == pytest.approx([0.5, 1.5])


def test_a_masked_response_counts_in_the_length_weighted_baseline_with_its_length() -> None:
    batch = rollouts([3, 1]).with_columns(finish_reason=pl.Series(["length", "stop"]))
    assembled = train_batch(batch, [1.0, 0.0], adv_estimator="opo", masks={"overlong": True})
    assert assembled["drop_reason"].to_list() == ["overlong", None]
    # (3·1 + 1·0) / 4
    assert assembled["score"].to_list() == pytest.approx([0.25, -0.75])


def test_what_shaping_made_of_a_reward_is_in_the_batch() -> None:
    shaping = {"length": {"coefficient": 0.125}}
    batch = assemble(config(shaping), rollouts([2, 4]), [1.0, None])
    assert batch["length_penalty"].to_list() == [-0.25, -0.5]
    assert batch["shaped_reward"].to_list() == [0.75, None]
    assert batch["overlong_penalty"].to_list() == [None, None]


def test_the_adaptive_coefficient_of_the_iteration_before_is_charged() -> None:
    settings = config(adv_estimator="reinforce", init_kl_coef=0.1, target_kl=0.5, kl_horizon=10)
    batch = rollouts([2])
    reference = batch.select("sample_id", logprobs=pl.Series([[-1.5, -0.5]], dtype=FLOATS))
    scored = rewards(batch, [1.0])
    # k1 is 1 and 0, mean 0.5: on target, so the coefficient stays; from 0.25 it would grow by 0.2 · 1/10.
    assert next_state(settings, 1, batch, scored, None, reference, None).kl_controller == {"coef": pytest.approx(0.1)}
    tighter = config(adv_estimator="reinforce", init_kl_coef=0.1, target_kl=0.25, kl_horizon=10)
    state = next_state(tighter, 1, batch, scored, None, reference, None)
    assert state.kl_controller == {"coef": pytest.approx(0.102)}
    charged = assemble(tighter, batch, [1.0], reference=reference, previous=state)
    assert charged["advantages"].to_list() == [pytest.approx([0.898, 1.0])]
    later = next_state(tighter, 2, batch, scored, None, reference, state)
    assert later.kl_controller == {"coef": pytest.approx(0.102 * 1.02)}


def test_without_a_target_the_coefficient_stays_the_configurations() -> None:
    settings = config(adv_estimator="reinforce", init_kl_coef=0.1)
    batch = rollouts([2])
    reference = batch.select("sample_id", logprobs=pl.Series([[-1.5, -0.5]], dtype=FLOATS))
    state = next_state(settings, 1, batch, rewards(batch, [1.0]), None, reference, None)
    assert state.kl_controller == {}
    charged = assemble(settings, batch, [1.0], reference=reference, previous=state)
    assert charged["advantages"].to_list() == [pytest.approx([0.9, 1.0])]


def test_running_statistics_go_from_iteration_to_iteration() -> None:
    settings = config({"norm_mean_type": "running"}, adv_estimator="reinforce")
    batch = rollouts([1, 1])
    first = next_state(settings, 1, batch, rewards(batch, [1.0, 0.0]), None, None, None)
    restored = RunState.model_validate_json(first.model_dump_json())
    assert restored == first
    # The mean of 1, 0, 3, 0 is 1.
    later = assemble(settings, batch, [3.0, 0.0], previous=restored)
    assert later["score"].to_list() == [2.0, -1.0]


@given(st.lists(st.lists(st.floats(-100, 100, width=32), max_size=6), min_size=1, max_size=6))
def test_padding_and_unpadding_are_inverse(rows: list[list[float]]) -> None:
    column = pl.Series("x", rows, dtype=FLOATS)
    values = padded(column, fill=7.0)
    assert values.shape == (len(rows), max(len(row) for row in rows))
    assert unpadded(values, like=column).to_list() == column.to_list()
    assert torch.all(values[padded(column.list.eval(pl.element().is_not_null())) == 0] == 7.0)
