"""Weights of responses by difficulty and length."""

from __future__ import annotations

import torch
from torch import Tensor


def sample_weights(trains: Tensor, *, difficulty: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
    """What the loss of each response is multiplied with: mean 1 over the responses that train, 0 for the others.

        w_i ∝ (0.5 + 1.5·clip(difficulty_i, 0, 1)) · (1.5 − (l_i − l_min) / (l_max − l_min))

    Hard prompts weigh more, up to four times an easy one, and long responses less, down to a third of the shortest.
    From ROLL's RLVR actor worker (difficulty_loss_weight, length_loss_weight). There the mean and the lengths are
    those of a micro-batch; here those of the batch, so that a split into micro-batches changes nothing.

    Args:
        trains: (N,) bool.
        difficulty: (N,) float, 0 easy to 1 hard; None: it does not count.
        lengths: (N,) tokens of each response that the policy chose; None: they do not count. Equal ones weigh the same.

    Returns:
        (N,) float32.

    Raises:
        ValueError: a response that trains has a NaN difficulty.
    """
    trains = trains.bool()
    weights = trains.to(torch.float64)
    if not trains.any():
        return weights.float()
    if difficulty is not None:
        if difficulty[trains].isnan().any():
            row = int((trains & difficulty.isnan()).nonzero()[0])
            raise ValueError(f"row {row} trains and its difficulty is NaN; it must be between 0 and 1")
        weights = torch.where(trains, weights * (0.5 + 1.5 * difficulty.double().clamp(0, 1)), 0.0)
    if lengths is not None:
        shortest, longest = lengths[trains].min(), lengths[trains].max()
        weights = weights * (1.5 - (lengths - shortest).double() / (longest - shortest).clamp(min=1))
    return (weights * trains.sum() / weights.sum()).float()
