"""The objective of micro-batches against the objective of their batch."""

from __future__ import annotations

import polars as pl
import pytest
import torch
from torch import Tensor

from rlcore.algorithms.losses import LOSSES
from rlcore.config import AlgorithmConfig, RolloutCorrectionConfig
from rlcore.trainer.microbatches import MicroBatch, collate
from rlcore.trainer.objective import Totals, objective, with_selection
from rlcore.trainer.packing import RowLengths, grow_trees

LENGTHS = (3, 1, 2, 4)
TOKENS = sum(LENGTHS)


def rows(values: Tensor) -> list[list[float]]:
    return [part.tolist() for part in values.split(LENGTHS)]


def made_batch() -> pl.DataFrame:
    generator = torch.Generator().manual_seed(0)
    draw = torch.randn(3, TOKENS, generator=generator) - 1
    mask = [[True] * 3, [True], [False] * 2, [True, False, True, True]]
    floats = pl.List(pl.Float32)
    return pl.DataFrame(
        {
            "sample_id": ["a", "b", "c", "d"],
            "prompt_ids": [[1, 2]] * 4,
            "response_ids": [[7] * length for length in LENGTHS],
            "loss_mask": mask,
            "rollout_logprobs": rows(draw[0]),
            "old_logprobs": rows(draw[0]),
            "ref_logprobs": rows(draw[1]),
            "advantages": rows(draw[2]),
            "score": [0.5, -0.5, 0.0, 0.25],
            "sample_weight": [1.0, 1.0, 1.0, 1.0],
        },
        schema_overrides=dict.fromkeys(("rollout_logprobs", "old_logprobs", "ref_logprobs", "advantages"), floats),
    )


BATCH = made_batch()
TOTALS = Totals.of(BATCH, max_length=8)


def evaluate(
    config: AlgorithmConfig, batch: pl.DataFrame, splits: list[list[int]]
) -> tuple[float, Tensor, dict[str, float]]:
    """Loss, gradient of the loss by token, and metrics, summed over micro-batches of the given rows."""
    generator = torch.Generator().manual_seed(1)
    logprobs = (torch.randn(TOKENS, generator=generator) - 1).requires_grad_()
    entropy = torch.rand(TOKENS, generator=generator)
    loss, metrics = torch.zeros(()), dict[str, float]()

    def of(values: Tensor, micro: MicroBatch) -> Tensor:
        parts = values.split(LENGTHS)
        return micro.align(torch.cat([parts[row] for row in micro.rows]))

    batch = with_selection(config, batch, [0, 1, 3])
    for split in splits:
        trees = grow_trees(split, RowLengths.of(batch), share_prompts=True, limit=100)
        micro = collate(batch, trees)
        part, shares, _ = objective(config, batch, micro, of(logprobs, micro), of(entropy, micro), TOTALS)
        loss = loss + part
        for name, share in shares.items():
            metrics[name] = metrics.get(name, 0.0) + float(share)
    loss.backward()
    assert logprobs.grad is not None
    return loss.item(), logprobs.grad, metrics


def test_totals_count_tokens_that_train_and_rows_that_have_one() -> None:
    assert Totals(num_tokens=7, num_sequences=3, max_length=8) == TOTALS


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_micro_batches_add_up_to_their_batch(mode: str) -> None:
    config = AlgorithmConfig.model_validate({"loss_agg_mode": mode, "kl_loss_coef": 0.1, "entropy_loss_coef": 0.01})
    loss, gradient, metrics = evaluate(config, BATCH, [[0, 1, 2, 3]])
    split_loss, split_gradient, split_metrics = evaluate(config, BATCH, [[3], [1, 0], [2]])
    assert split_loss == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(split_gradient, gradient)
    assert split_metrics == pytest.approx(metrics, rel=1e-5)
    assert metrics["loss"] == pytest.approx(
        metrics["policy_loss"] + 0.1 * metrics["kl_loss"] - 0.01 * metrics["entropy"] if mode == "token-mean" else loss,
        rel=1e-5,
    )


def test_a_row_weighs_what_its_sample_weight_says() -> None:
    config = AlgorithmConfig()
    _, plain, _ = evaluate(config, BATCH, [[0, 1, 2, 3]])
    weighted = BATCH.with_columns(sample_weight=pl.Series([2.0, 0.0, 1.0, 1.0]))
    _, gradient, _ = evaluate(config, weighted, [[0, 1, 2, 3]])
    factor = torch.tensor([2.0] * 3 + [0.0] + [1.0] * 6)
    torch.testing.assert_close(gradient, plain * factor)


def test_masked_tokens_have_no_gradient() -> None:
    config = AlgorithmConfig(kl_loss_coef=0.1)
    _, gradient, _ = evaluate(config, BATCH, [[0, 1, 2, 3]])
    mask = BATCH["loss_mask"].explode().to_torch()
    assert gradient[~mask].eq(0).all()
    assert gradient[mask].ne(0).any()


def test_the_clip_bounds_of_the_configuration_reach_the_loss() -> None:
    metrics = [
        evaluate(AlgorithmConfig(pg_clip_low=bound, pg_clip_high=bound), BATCH, [[0, 1, 2, 3]])[2]
        for bound in (0.0, 0.9)
    ]
    assert metrics[0]["clip_fraction_low"] > metrics[1]["clip_fraction_low"]


def test_reinforce_takes_no_clip_bounds() -> None:
    _, gradient, metrics = evaluate(AlgorithmConfig(policy_loss="reinforce"), BATCH, [[0, 1, 2, 3]])
    advantages = BATCH["advantages"].explode().to_torch()
    mask = BATCH["loss_mask"].explode().to_torch()
    torch.testing.assert_close(gradient, -advantages * mask / 7)
    assert "clip_fraction_low" not in metrics


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_every_loss_is_the_same_in_micro_batches(name: str) -> None:
    config = AlgorithmConfig(policy_loss=name, old_logprobs="recompute", rollout_correction=RolloutCorrectionConfig())
    batch = BATCH.with_columns(old_logprobs="ref_logprobs")
    whole, whole_gradient, whole_metrics = evaluate(config, batch, [[0, 1, 2, 3]])
    split, split_gradient, split_metrics = evaluate(config, batch, [[3], [1, 2], [0]])
    assert split == pytest.approx(whole, rel=1e-5)
    torch.testing.assert_close(split_gradient, whole_gradient)
    assert split_metrics == pytest.approx(whole_metrics, rel=1e-4, abs=1e-6)


CORRECTIONS = [
    {"level": "token"},
    {"level": "sequence"},
    {"level": "geometric"},
    {"high": 1.5},
    {"mode": "mask"},
    {"mode": "mask", "low": 0.9},
]


def test_every_setting_of_the_rollout_correction_changes_the_gradient() -> None:
    batch = BATCH.with_columns(old_logprobs="ref_logprobs")
    gradients = [
        evaluate(
            AlgorithmConfig(old_logprobs="recompute", policy_loss="reinforce", rollout_correction=correction),
            batch,
            [[0, 1, 2, 3]],
        )[1].tolist()
        for correction in (None, *CORRECTIONS)
    ]
    assert all(one != other for index, one in enumerate(gradients) for other in gradients[:index])


def test_tokens_of_the_highest_covariance_are_chosen_over_the_whole_batch() -> None:
    config = AlgorithmConfig(policy_loss="kl_cov", policy_loss_options={"fraction": 0.25})
    selected = with_selection(config, BATCH, [0, 1, 3])["selected"].to_list()
    # A quarter of seven tokens, exactly one; none of the row that does not train, and none that is masked.
    assert sum(map(sum, selected)) == 1
    assert not any(selected[2]) and not selected[3][1]
