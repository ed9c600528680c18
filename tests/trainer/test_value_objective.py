"""The critic's objective of micro-batches against that of their batch."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
import torch
from torch import Tensor

from rlcore.config import Config
from rlcore.trainer.microbatches import MicroBatch, collate
from rlcore.trainer.objective import Totals
from rlcore.trainer.packing import RowLengths, grow_trees
from rlcore.trainer.value_objective import value_objective

LENGTHS = (3, 1, 2, 4)
VALUES = torch.tensor([0.1, -0.2, 0.3, 0.4, 0.5, 0.6, -0.7, 0.8, 0.9, 1.0])
OLD = torch.zeros(10)
RETURNS = torch.tensor([1.0, 1.0, 1.0, 0.0, 9.0, 9.0, 1.0, 1.0, 0.0, 0.0])


def rows(values: Tensor) -> list[list[float]]:
    return [part.tolist() for part in values.split(LENGTHS)]


BATCH = pl.DataFrame(
    {
        "sample_id": ["a", "b", "c", "d"],
        "prompt_ids": [[1, 2]] * 4,
        "response_ids": [[7] * length for length in LENGTHS],
        "loss_mask": [[True] * 3, [True], [False] * 2, [True, False, True, True]],
        "values": rows(OLD),
        "returns": rows(RETURNS),
    },
    schema_overrides={"values": pl.List(pl.Float32), "returns": pl.List(pl.Float32)},
)
TOTALS = Totals.of(BATCH, max_length=8)


def config(value_clip: float | None = 0.2, mode: str = "token-mean") -> Config:
    tree: dict[str, Any] = {
        "run": "critic",
        "iterations": 1,
        "eval_steps": 0,
        "model": {"path": "model"},
        "data": {"train": ["x"], "held_out": [], "prompt_length": 8, "domain_interleave_probs": {"d": 1.0}},
        "rollout": {"rollout_batch_size": 1, "num_return_sequences_in_group": 4, "response_length": 8},
        "rewards": {"d": {"grader": "math"}},
        "algorithm": {"loss_agg_mode": mode},
        "critic": {"value_clip": value_clip},
        "hardware": {"trainer_threads": 1, "engine_threads": 1},
    }
    return Config.model_validate(tree)


def evaluate(
    settings: Config, splits: list[list[int]], batch: pl.DataFrame = BATCH
) -> tuple[float, Tensor, dict[str, float]]:
    """Loss, its gradient by value, and metrics, summed over micro-batches of the given rows."""
    values = VALUES.clone().requires_grad_()
    loss, metrics = torch.zeros(()), dict[str, float]()

    def of(micro: MicroBatch) -> Tensor:
        parts = values.split(LENGTHS)
        return micro.align(torch.cat([parts[row] for row in micro.rows]))

    for split in splits:
        trees = grow_trees(split, RowLengths.of(batch), share_prompts=True, limit=100)
        micro = collate(batch, trees)
        part, shares = value_objective(settings, batch, micro, of(micro), TOTALS)
        loss = loss + part
        for name, share in shares.items():
            metrics[name] = metrics.get(name, 0.0) + float(share)
    loss.backward()
    assert values.grad is not None
    return loss.item(), values.grad, metrics


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_micro_batches_add_up_to_their_batch(mode: str) -> None:
    loss, gradient, metrics = evaluate(config(mode=mode), [[0, 1, 2, 3]])
    split_loss, split_gradient, split_metrics = evaluate(config(mode=mode), [[3], [1, 0], [2]])
    assert split_loss == pytest.approx(loss, rel=1e-6)
    torch.testing.assert_close(split_gradient, gradient)
    assert split_metrics == pytest.approx(metrics, rel=1e-6)


def test_without_a_clip_it_is_half_the_mean_squared_error_of_the_tokens_that_train() -> None:
    loss, gradient, metrics = evaluate(config(value_clip=None), [[0, 1, 2, 3]])
    # Errors R − V of the 7 tokens: 0.9, 1.2, 0.7, -0.4, 1.7, -0.9, -1.0; their squares sum to 7.60.
    assert loss == pytest.approx(7.60 / 2 / 7)
    # The values sum to 1.8, the returns to 4.
    assert metrics["value_mean"] == pytest.approx(1.8 / 7)
    assert metrics["return_mean"] == pytest.approx(4 / 7)
    assert "value_clip_fraction" not in metrics
    mask = BATCH["loss_mask"].explode().to_torch()
    torch.testing.assert_close(gradient, (VALUES - RETURNS) / 7 * mask)


def test_a_value_that_moved_beyond_the_clip_towards_its_return_has_no_gradient() -> None:
    _, gradient, metrics = evaluate(config(value_clip=0.2), [[0, 1, 2, 3]])
    # Token 2 moved from 0 to 0.3 and wants 1; token 6 from 0 to -0.7 and wants 1, which is the way back.
    assert gradient[2] == 0.0
    assert gradient[6] == pytest.approx(-1.7 / 7)
    assert metrics["value_clip_fraction"] == pytest.approx(5 / 7)


def test_a_batch_without_values_is_refused() -> None:
    without = BATCH.with_columns(values=pl.lit(None, dtype=pl.List(pl.Float32)))
    with pytest.raises(ValueError, match="values of a is null"):
        evaluate(config(), [[0]], without)
