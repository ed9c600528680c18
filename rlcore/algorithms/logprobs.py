"""Log-probabilities and entropy of a softmax."""

from __future__ import annotations

import torch
from torch import Tensor


def logprobs_from_logits(logits: Tensor, tokens: Tensor, temperature: float = 1.0) -> Tensor:
    """log softmax(logits / temperature) at the given tokens.

    Args:
        logits: (..., V), any float dtype; computed in at least float32.
        tokens: (...), int64, in [0, V).
        temperature: of the distribution that the tokens were sampled from, > 0.

    Returns:
        (...), float32 (float64 where the logits are).
    """
    logits = _at_least_float32(logits)
    if temperature != 1.0:  # Dividing would copy the largest tensor there is.
        logits = logits / temperature
    return logits.log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def entropy_from_logits(logits: Tensor) -> Tensor:
    """−Σ p·log p of p = softmax(logits), in nats. (..., V) finite → (...), float32 (float64 where the logits are).

    Of the distribution that was sampled from if the logits are divided by its temperature first.
    """
    logprobs = _at_least_float32(logits).log_softmax(-1)
    return -torch.einsum("...v,...v->...", logprobs.exp(), logprobs)


def _at_least_float32(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
