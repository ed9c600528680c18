"""The critic's objective on one micro-batch, in the denominators of the whole batch."""

from __future__ import annotations

import polars as pl
from torch import Tensor

from rlcore.algorithms import aggregate
from rlcore.algorithms.metrics import token_sum
from rlcore.algorithms.value_loss import value_loss
from rlcore.config import Config
from rlcore.trainer.microbatches import MicroBatch, per_token
from rlcore.trainer.objective import Totals


def value_objective(
    config: Config, batch: pl.DataFrame, micro: MicroBatch, values: Tensor, totals: Totals
) -> tuple[Tensor, dict[str, Tensor]]:
    """½·max((V − R)², (clip(V, V_old ± c) − R)²), PPO's value loss, aggregated by `algorithm.loss_agg_mode`.

    V_old are the batch's `values` and R its `returns`; c is `critic.value_clip`.

    Args:
        batch: the TrainBatch that `micro` was collated from.
        values: (B, T) float32 of the critic, with gradient.
        totals: of the whole batch, so that the results of its micro-batches add up to its loss and metrics.

    Returns:
        The loss (a scalar), and this micro-batch's shares of the metrics: value_loss, value_mean and return_mean over
        the tokens, and value_clip_fraction, of tokens further than the clip from their old value.

    Raises:
        ValueError: a row has no values.
    """
    mask = per_token(batch, "loss_mask", micro)
    old, returns = per_token(batch, "values", micro), per_token(batch, "returns", micro)
    loss = aggregate(
        value_loss(values, old, returns, mask, clip=config.critic.value_clip),
        mask,
        config.algorithm.loss_agg_mode,
        num_tokens=totals.num_tokens,
        num_sequences=totals.num_sequences,
        max_length=totals.max_length,
    )
    shares = {
        "value_loss": loss.detach(),
        "value_mean": token_sum(values, mask) / totals.num_tokens,
        "return_mean": token_sum(returns, mask) / totals.num_tokens,
    }
    if config.critic.value_clip is not None:
        beyond = (values - old).abs() > config.critic.value_clip
        shares["value_clip_fraction"] = token_sum(beyond, mask) / totals.num_tokens
    return loss, {name: share.cpu() for name, share in shares.items()}
