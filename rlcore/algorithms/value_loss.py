"""What a critic is trained on."""

from __future__ import annotations

import torch
from torch import Tensor


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, clip: float | None = None) -> Tensor:
    """Half the squared error of every token: all (B, T), differentiable in `values`, 0 where masked.

        without clip   ½(V − R)²
        with clip c    ½·max((V − R)², (clip(V, V_old ± c) − R)²)

    Schulman et al., arXiv 1707.06347, equation 9 (L^VF); the clip is that of the OpenAI Baselines code, written
    down by Engstrom et al., "Implementation matters in deep policy gradients", arXiv 2005.12729. The larger of the
    errors: a step that has already gone c towards the return gives no gradient, a step away from it always does.
    `old_values` are the values at the start of the update, and count only with `clip`.
    """
    trains = mask.bool()
    values, old_values, returns = (torch.where(trains, tensor, 0.0) for tensor in (values, old_values, returns))
    error = (values - returns).square()
    if clip is not None:
        clipped = values.clamp(old_values - clip, old_values + clip)
        error = torch.maximum(error, (clipped - returns).square())
    return error / 2
