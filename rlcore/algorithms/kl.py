"""Estimates of the KL divergence from sampled tokens."""

from __future__ import annotations

from torch import Tensor

from rlcore.algorithms.ratio import LOG_RATIO_LIMIT

K3_LIMIT = 10.0


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, kind: str) -> Tensor:
    """KL(π‖π_ref) per token, for tokens sampled from π. (B, T), differentiable in `logprobs`.

    With d = log π − log π_ref:

        k1    d                 unbiased, high variance, may be negative
        abs   |d|
        k2    d²/2              biased; its gradient is the unbiased one of the KL
        k3    e^(−d) + d − 1    unbiased and never negative

    Schulman, 2020, "Approximating KL divergence" (k1, k2, k3). In k3 d is clamped to ±20 and the estimate to
    at most 10; beyond either its gradient is 0.

    Raises:
        ValueError: no estimator of that kind.
    """
    difference = logprobs - ref_logprobs
    match kind:
        case "k1":
            return difference
        case "abs":
            return difference.abs()
        case "k2":
            return difference.square() / 2
        case "k3":
            difference = difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
            return ((-difference).exp() + difference - 1).clamp(max=K3_LIMIT)
        case _:
            raise ValueError(f"no KL estimator {kind!r}; there are k1, abs, k2, k3")
