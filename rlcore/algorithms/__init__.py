"""Losses, advantages, KL and aggregation as pure functions on tensors.

Response-aligned tensors are (B, T) and float32; `mask` is 1 where a token trains, and what stands at
masked positions influences nothing. `logprobs[b, t]` belongs to `response_ids[b, t]` and is of the
distribution that was sampled from, temperature applied.
"""

from rlcore.algorithms.advantages import group_advantages
from rlcore.algorithms.aggregation import aggregate
from rlcore.algorithms.inputs import LossInputs
from rlcore.algorithms.kl import kl_estimate
from rlcore.algorithms.logprobs import entropy_from_logits, logprobs_from_logits
from rlcore.algorithms.losses import policy_loss
from rlcore.algorithms.returns import discounted_returns

__all__ = [
    "LossInputs",
    "aggregate",
    "discounted_returns",
    "entropy_from_logits",
    "group_advantages",
    "kl_estimate",
    "logprobs_from_logits",
    "policy_loss",
]
