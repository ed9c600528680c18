"""The objective of micro-batches against the objective of their batch."""

from __future__ import annotations

import polars as pl
import pytest
import torch
from torch import Tensor

from rlcore.config import AlgorithmConfig
from rlcore.trainer.microbatches import MicroBatch, collate
from rlcore.trainer.objective import Totals, objective

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

    for split in splits:
        micro = collate(batch, split)
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
