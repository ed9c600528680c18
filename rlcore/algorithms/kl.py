"""Estimates of the KL divergence from sampled tokens, and the divergence itself."""

from __future__ import annotations

import torch
from torch import Tensor

from rlcore.algorithms.ratio import LOG_RATIO_LIMIT

K3_LIMIT = 10.0
KINDS = ("k1", "abs", "k2", "k3", "k1+", "abs+", "k3+")


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, kind: str) -> Tensor:
    """KL(π‖π_ref) per token, for tokens sampled from π. (B, T), differentiable in `logprobs`.

    With d = log π − log π_ref:

        k1    d                 unbiased, high variance, may be negative
        abs   |d|
        k2    d²/2              biased; its gradient is the unbiased one of the KL
        k3    e^(−d) + d − 1    unbiased and never negative

    Schulman, 2020, "Approximating KL divergence" (k1, k2, k3). In k3 d is clamped to ±20 and the estimate to
    at most 10; beyond either its gradient is 0.

    k1+, abs+ and k3+ have the value of the estimator and the gradient of k2. As a loss it is the gradient that
    counts, and unbiased values do not make it so: on samples of π that of k1 is 0 in expectation, that of k3 the
    gradient of the reverse divergence KL(π_ref‖π).

    Raises:
        ValueError: no estimator of that kind.
    """
    if kind not in KINDS:
        raise ValueError(f"no KL estimator {kind!r}; there are {', '.join(KINDS)}")
    difference = logprobs - ref_logprobs
    if kind.endswith("+"):
        k2 = _estimate(difference, "k2")
        return _estimate(difference.detach(), kind.removesuffix("+")) + (k2 - k2.detach())
    return _estimate(difference, kind)


def full_kl(logits: Tensor, ref_logits: Tensor) -> Tensor:
    """KL(π‖π_ref) = Σ_v π_v·(log π_v − log π_ref,v) over the vocabulary, π = softmax(logits).

    (..., V) finite → (...), float32 (float64 where the logits are), differentiable in `logits`. Of the distribution
    that was sampled from if both logits are divided by its temperature first.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    logprobs, ref_logprobs = logits.to(dtype).log_softmax(-1), ref_logits.to(dtype).log_softmax(-1)
    return torch.einsum("...v,...v->...", logprobs.exp(), logprobs - ref_logprobs)


def _estimate(difference: Tensor, kind: str) -> Tensor:
    match kind:
        case "k1":
            return difference
        case "abs":
            return difference.abs()
        case "k2":
            return difference.square() / 2
        case _:
            difference = difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
            return ((-difference).exp() + difference - 1).clamp(max=K3_LIMIT)
