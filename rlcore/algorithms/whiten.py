"""Zero mean and unit variance over the tokens of a batch."""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-6


def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """(v − mean) / (std + 1e-6) over the tokens that train, 0 where masked. (B, T) → (B, T).

    Over the tokens of the whole batch: a micro-batch or rank on its own gives something else. The standard
    deviation is unbiased; mean and deviation are computed in float64. Fewer than two tokens stay as they are,
    equal ones become 0.
    """
    trains = mask.bool()
    tokens = values[trains].double()
    if len(tokens) < 2:
        return torch.where(trains, values, 0.0)
    centred = tokens - tokens.mean()
    if tokens.min() == tokens.max():
        centred = torch.zeros_like(tokens)  # The rounding of the mean would be a deviation.
    return torch.zeros_like(values).masked_scatter(trains, (centred / (tokens.std() + EPSILON)).to(values.dtype))
