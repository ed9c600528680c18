"""From the losses of tokens to the loss of a batch."""

from __future__ import annotations

import torch
from torch import Tensor

MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


def aggregate(
    token_loss: Tensor,
    mask: Tensor,
    mode: str,
    *,
    num_tokens: int | Tensor | None = None,
    num_sequences: int | Tensor | None = None,
    max_length: int | None = None,
) -> Tensor:
    """One scalar of (B, T) token losses ℓ and mask m.

        token-mean                Σ_b Σ_t mℓ / N                DAPO, arXiv 2503.14476, equation 12
        seq-mean-token-sum        Σ_b (Σ_t mℓ) / S
        seq-mean-token-mean       Σ_b (Σ_t mℓ / Σ_t m) / S      GRPO, arXiv 2402.03300, equation 3
        seq-mean-token-sum-norm   Σ_b (Σ_t mℓ / L) / S          Dr. GRPO, arXiv 2503.20783, section 3.2

    N is `num_tokens`, the tokens that train; S is `num_sequences`, the sequences with at least one of them; L is
    `max_length`, a constant. Given the N and S of the whole batch, the results of its micro-batches (and of the
    ranks that share it) sum to the result of the batch, and so do the gradients. Left out, they are counted in
    `mask`. Where no token trains the result is 0 and so is the gradient.

    Raises:
        ValueError: no mode of that name, or seq-mean-token-sum-norm without `max_length`.
    """
    trains = mask.bool()
    sequence_tokens = trains.sum(-1)
    sequence_loss = torch.where(trains, token_loss, 0.0).sum(-1)
    if mode == "token-mean":
        return sequence_loss.sum() / _at_least_one(sequence_tokens.sum() if num_tokens is None else num_tokens)
    sequences = _at_least_one((sequence_tokens > 0).sum() if num_sequences is None else num_sequences)
    if mode == "seq-mean-token-sum":
        return sequence_loss.sum() / sequences
    if mode == "seq-mean-token-mean":
        return (sequence_loss / sequence_tokens.clamp(min=1)).sum() / sequences
    if mode == "seq-mean-token-sum-norm":
        if max_length is None:
            raise ValueError("seq-mean-token-sum-norm divides by max_length: pass the longest response length")
        return sequence_loss.sum() / max_length / sequences
    raise ValueError(f"no aggregation {mode!r}; there are {', '.join(MODES)}")


def _at_least_one(count: int | Tensor) -> int | Tensor:
    return count.clamp(min=1) if isinstance(count, Tensor) else max(count, 1)
