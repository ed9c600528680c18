from __future__ import annotations

import json
import math
from typing import Any

import polars as pl
import pytest

from rlcore.batches import EvalBatch, RewardBatch, RolloutBatch, TrainBatch, validate
from rlcore.reports import UpdateReport
from rlcore.tracking.accuracy import wilson_interval
from rlcore.tracking.metrics import iteration_metrics, read_iteration_metrics
from rlcore.tracking.outputs import IterationOutputs
from tests.rollout_rows import PROMPT_AND_GRADE
from tests.tracking.conftest import MadeUpRun, conform, sync_report


def response(index: int, domain: str, versions: list[int], reward: float | None, **changes: Any) -> dict[str, Any]:
    """A row with the columns of RolloutBatch, RewardBatch and TrainBatch."""
    length = len(versions)
    return {
        "sample_id": f"p{index // 2}#{index % 2}",
        "prompt_id": f"p{index // 2}",
        "domain": domain,
        **PROMPT_AND_GRADE,
        "prompt_ids": [1, 2],
        "response_ids": [3] * length,
        "loss_mask": [reward is not None] * length,
        "rollout_logprobs": [-1.0] * length,
        "policy_versions": versions,
        "finish_reason": "stop",
        "response_text": "7",
        "seconds": 0.5,
        "reward": reward,
        "reward_status": "timeout" if reward is None else "scored",
        "components": [],
        "detail": "",
        "old_logprobs": [-1.0] * length,
        "ref_logprobs": None,
        "values": None,
        "advantages": [0.0] * length,
        "returns": [0.0] * length,
        "raw_reward": reward,
        "overlong_penalty": None,
        "length_penalty": None,
        "repetition_penalty": None,
        "shaped_reward": reward,
        "score": 0.5,
        "sample_weight": 1.0,
        "drop_reason": "no_reward" if reward is None else None,
        **changes,
    }


ROWS = [
    response(0, "arithmetic", [4, 4], 1.0),
    response(1, "arithmetic", [3, 4, 4, 4], 0.0, finish_reason="length"),
    response(2, "format", [4], 0.5),
    response(3, "format", [2, 2, 2], None),
]


def update_report(critic: UpdateReport | None = None, **metrics: float) -> UpdateReport:
    return UpdateReport(
        iteration=5, policy_version=5, optimizer_steps=1, skipped=False, seconds=8.0, metrics=metrics, critic=critic
    )


def metrics_of(
    rows: list[dict[str, Any]], evaluation: pl.DataFrame | None = None, critic: UpdateReport | None = None
) -> dict[str, float]:
    """Of iteration 5, which trains policy version 4."""
    update = update_report(critic, grad_norm=0.7, clip_fraction_low=0.01, clip_fraction_high=0.02)
    return iteration_metrics(
        rollouts=validate(conform(rows, RolloutBatch), RolloutBatch),
        rewards=validate(conform(rows, RewardBatch), RewardBatch),
        train=validate(conform(rows, TrainBatch), TrainBatch),
        update=update,
        sync=sync_report(5),
        evaluation=evaluation,
        seconds={"generate": 4.0, "update": 8.0},
    )


def test_rewards_are_means_over_scored_responses_and_failures_are_counted() -> None:
    metrics = metrics_of(ROWS)
    assert metrics["reward/mean"] == pytest.approx((1.0 + 0.0 + 0.5) / 3)
    assert metrics["reward/arithmetic"] == 0.5
    assert metrics["reward/format"] == 0.5
    statuses = {key: value for key, value in metrics.items() if key.startswith("reward/status/")}
    assert statuses == {
        "reward/status/scored": 3,
        "reward/status/timeout": 1,
        "reward/status/grader_error": 0,
        "reward/status/infra_error": 0,
    }


def test_penalties_and_shaped_rewards_are_means_by_domain_and_drops_are_counted() -> None:
    rows = [
        response(0, "arithmetic", [4, 4], 1.0, length_penalty=-0.25, shaped_reward=0.75),
        response(1, "arithmetic", [4], 0.0, length_penalty=-0.125, shaped_reward=None, drop_reason="no_variance"),
        response(2, "arithmetic", [4], None, length_penalty=-0.5),
        response(3, "format", [4], 0.5),
    ]
    shaping = {key: value for key, value in metrics_of(rows).items() if key.startswith("shaping/") and value}
    assert shaping == {
        "shaping/arithmetic/length_penalty": (-0.25 - 0.125) / 2,
        "shaping/arithmetic/shaped_reward": 0.75,
        "shaping/arithmetic/dropped/no_variance": 1,
        "shaping/arithmetic/dropped/no_reward": 1,
        "shaping/format/shaped_reward": 0.5,
    }


def test_lengths_truncation_speed_and_staleness_by_hand() -> None:
    metrics = metrics_of(ROWS)
    assert metrics["response/length_mean"] == (2 + 4 + 1 + 3) / 4
    assert metrics["response/length_mean/format"] == 2
    assert metrics["response/length_max"] == 4
    assert metrics["response/truncated"] == 0.25
    assert metrics["rollout/responses"] == 4
    assert metrics["rollout/tokens_per_second"] == 10 / 4.0
    # Versions behind 4: one token by 1, three by 2, of ten.
    assert metrics["rollout/staleness_mean"] == pytest.approx(0.7)
    assert metrics["rollout/staleness_max"] == 2


def test_the_updates_metrics_are_kept_and_what_did_not_train_is_counted() -> None:
    metrics = metrics_of(ROWS)
    assert metrics["train/grad_norm"] == 0.7
    assert metrics["train/clip_fraction"] == pytest.approx(0.03)
    assert metrics["train/responses"] == 3
    assert metrics["train/dropped/no_reward"] == 1
    assert metrics["train/dropped/no_variance"] == 0
    assert metrics["sync/probe_gap_mean"] == 0.03
    assert metrics["seconds/update"] == 8.0
    assert "train/reference_kl_k3" not in metrics


def test_kl_to_the_reference_is_over_the_tokens_that_train() -> None:
    rows = [
        response(0, "format", [4, 4], 1.0, old_logprobs=[-1.0, -1.0], ref_logprobs=[-1.5, -1.0]),
        response(1, "format", [4], None, old_logprobs=[-1.0], ref_logprobs=[-9.0]),
    ]
    # d = 0.5 and 0: (e^-0.5 + 0.5 - 1 + 0) / 2
    assert metrics_of(rows)["train/reference_kl_k3"] == pytest.approx((math.exp(-0.5) - 0.5) / 2)


def test_the_critics_metrics_are_its_updates_and_how_well_its_values_foretold_the_returns() -> None:
    critic = update_report(value_loss=0.25)
    rows = [
        response(0, "format", [4, 4, 4], 1.0, values=[0.0, 1.0, 1.0], returns=[0.0, 1.0, 2.0]),
        response(1, "format", [4], None, values=[9.0], returns=[0.0]),
        response(2, "format", [], 1.0, values=[], returns=[]),
    ]
    metrics = metrics_of(rows, critic=critic)
    assert metrics["critic/value_loss"] == 0.25
    # Errors 0, 0, 1 have the variance 1/3, returns 0, 1, 2 the variance 1.
    assert metrics["critic/explained_variance"] == pytest.approx(2 / 3)
    equal = [response(0, "format", [4, 4], 1.0, values=[0.0, 1.0], returns=[1.0, 1.0])]
    assert "critic/explained_variance" not in metrics_of(equal, critic=critic)
    assert not any(key.startswith("critic/") for key in metrics_of(rows))


def test_a_number_that_does_not_exist_is_absent() -> None:
    metrics = metrics_of([response(0, "format", [4], None), response(1, "format", [], None)])
    assert "reward/mean" not in metrics and "reward/format" not in metrics
    assert not any(key.startswith("eval/") for key in metrics)
    assert all(math.isfinite(value) for value in metrics.values())


def test_evaluation_by_domain_with_intervals() -> None:
    def answer(index: int, domain: str, reward: float | None) -> dict[str, Any]:
        row = response(index, domain, [1], reward, prompt_id=f"h{index}", tag="", prompt_text="", ground_truth="")
        return row

    graded = [("arithmetic", 1.0), ("arithmetic", 1.0), ("arithmetic", 0.0), ("format", 0.5), ("format", None)]
    evaluation = conform([answer(i, domain, reward) for i, (domain, reward) in enumerate(graded)], EvalBatch)
    metrics = metrics_of(ROWS, validate(evaluation, EvalBatch))
    low, high = wilson_interval(2, 4)
    assert (metrics["eval/accuracy"], metrics["eval/low"], metrics["eval/high"]) == (0.5, low, high)
    assert metrics["eval/arithmetic/accuracy"] == pytest.approx(2 / 3)
    assert metrics["eval/format/accuracy"] == 0
    assert (metrics["eval/format/low"], metrics["eval/format/high"]) == wilson_interval(0, 1)
    assert metrics["eval/ungraded"] == 1


def test_a_runs_metrics_come_from_its_recorded_outputs(made_up_run: MadeUpRun) -> None:
    untrained = read_iteration_metrics(IterationOutputs(made_up_run.store, 0))
    assert {key.split("/")[0] for key in untrained} == {"eval", "seconds"}
    rewards = pl.read_parquet(made_up_run.directory / "iterations/000003/rewards.parquet")
    metrics = read_iteration_metrics(IterationOutputs(made_up_run.store, 3))
    assert metrics["reward/mean"] == rewards["reward"].mean()
    recorded = json.loads((made_up_run.directory / "metrics.jsonl").read_text().splitlines()[3])
    assert recorded == {"iteration": 3, **metrics}
    with pytest.raises(KeyError, match="update"):
        read_iteration_metrics(IterationOutputs(made_up_run.store, 9))


def test_metrics_that_only_a_lost_batch_could_tell_are_absent(made_up_run: MadeUpRun) -> None:
    whole = read_iteration_metrics(IterationOutputs(made_up_run.store, 3))
    (made_up_run.directory / "iterations/000003/rewards.parquet").unlink()
    without = read_iteration_metrics(IterationOutputs(made_up_run.store, 3))
    assert without.items() <= whole.items()
    assert {key.split("/")[0] for key in whole.keys() - without.keys()} == {"reward"}
    (made_up_run.directory / "iterations/000003/rollouts.parquet").write_bytes(b"half")
    without = read_iteration_metrics(IterationOutputs(made_up_run.store, 3))
    lost = {key.split("/")[0] for key in whole.keys() - without.keys()}
    assert lost - {"shaping"} == {"reward", "response", "rollout"}
