"""Losses, advantages, KL and aggregation as pure functions on tensors.

Response-aligned tensors are (B, T) and float32; `mask` is 1 where a token trains, and what stands at
masked positions influences nothing. `logprobs[b, t]` belongs to `response_ids[b, t]` and is of the
distribution that was sampled from, temperature applied.
"""

from rlcore.algorithms.advantages import group_advantages
from rlcore.algorithms.aggregation import aggregate
from rlcore.algorithms.correction import rollout_correction
from rlcore.algorithms.inputs import LossInputs
from rlcore.algorithms.kl import full_kl, kl_estimate
from rlcore.algorithms.kl_control import AdaptiveKL, FixedKL
from rlcore.algorithms.logprobs import entropy_from_logits, logprobs_from_logits
from rlcore.algorithms.losses import batch_selection, policy_loss
from rlcore.algorithms.returns import discounted_returns, gae
from rlcore.algorithms.sample_weights import sample_weights
from rlcore.algorithms.value_loss import value_loss
from rlcore.algorithms.whiten import whiten

__all__ = [
    "AdaptiveKL",
    "FixedKL",
    "LossInputs",
    "aggregate",
    "batch_selection",
    "discounted_returns",
    "entropy_from_logits",
    "full_kl",
    "gae",
    "group_advantages",
    "kl_estimate",
    "logprobs_from_logits",
    "policy_loss",
    "rollout_correction",
    "sample_weights",
    "value_loss",
    "whiten",
]
