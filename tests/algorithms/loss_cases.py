"""Every policy loss with options that make each of its branches matter."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlcore.algorithms import LossInputs, policy_loss
from rlcore.algorithms.losses import LOSSES, batch_selection

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "reinforce": ("reinforce", {}),
    "ppo": ("ppo", {"clip_low": 0.2, "clip_high": 0.28}),
    "ppo-dual": ("ppo", {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 1.4}),
    "gspo": ("gspo", {}),
    "gspo-dual": ("gspo", {"clip_low": 0.1, "clip_high": 0.2, "dual_clip": 1.3}),
    "gspo_token": ("gspo_token", {}),
    "gspo_token-dual": ("gspo_token", {"clip_low": 0.1, "clip_high": 0.2, "dual_clip": 1.3}),
    "gmpo": ("gmpo", {"clip_low": 0.3, "clip_high": 0.4}),
    "cispo": ("cispo", {}),
    "cispo-masked": ("cispo", {"clip_low": 0.1, "clip_high": 0.2, "unified_mask": True}),
    "topr": ("topr", {}),
    "topr-token": ("topr", {"ratio": "token", "positive_weight": 0.5, "negative_weight": 2.0}),
    "tis_roll": ("tis_roll", {}),
    "kimi15": ("kimi15", {"tau": 0.3}),
    "sapo": ("sapo", {"tau_positive": 1.0, "tau_negative": 2.0}),
    "opmd": ("opmd", {"tau": 0.5}),
    "clip_cov": ("clip_cov", {"fraction": 0.3, "covariance_low": -1.0, "covariance_high": 1.0, "clip_high": 0.28}),
    "kl_cov": ("kl_cov", {"fraction": 0.3}),
    "kl_cov-k3": ("kl_cov", {"fraction": 0.3, "kl_coef": 0.5, "kl_type": "k3"}),
    "decoupled_ppo": ("decoupled_ppo", {"clip_high": 0.28}),
    "decoupled_ppo-mask": ("decoupled_ppo", {"weight": "mask", "weight_high": 1.5, "dual_clip": 1.4}),
    "decoupled_ppo-approximate": ("decoupled_ppo", {"approximate_old": 0.3}),
}
CASES |= {name: (name, {}) for name in LOSSES if name not in {of for of, _ in CASES.values()}}
each_loss = pytest.mark.parametrize(("name", "options"), CASES.values(), ids=CASES)


def with_selection(name: str, options: dict[str, Any], inputs: LossInputs) -> LossInputs:
    """The batch with the tokens that the loss selects in it."""
    selected = batch_selection(name, inputs.old_logprobs, inputs.advantages, inputs.mask, **options)
    return replace(inputs, selected=selected)


def take(inputs: LossInputs, rows: slice | Tensor) -> LossInputs:
    """Some rows of a batch."""
    tensors = {field.name: getattr(inputs, field.name) for field in fields(inputs)}
    return replace(inputs, **{name: values[rows] for name, values in tensors.items() if values is not None})


def run(
    name: str, options: dict[str, Any], inputs: LossInputs, cotangent: Tensor | float = 1.0
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Token losses, the gradient of their sum weighted by `cotangent`, and metrics."""
    logprobs = inputs.logprobs.clone().requires_grad_()
    token_loss, metrics = policy_loss(name, replace(inputs, logprobs=logprobs), **options)
    (gradient,) = torch.autograd.grad((token_loss * cotangent).sum(), logprobs)
    return token_loss.detach(), gradient, metrics


def one_sequence(ratios: list[float], advantages: list[float], **optional: Tensor) -> LossInputs:
    """A response of which π_old gave each token probability 1/2 and π that times its ratio. (1, T), float64."""
    old_logprobs = torch.full((1, len(ratios)), 0.5, dtype=torch.float64).log()
    return LossInputs(
        logprobs=old_logprobs + torch.tensor([ratios], dtype=torch.float64).log(),
        old_logprobs=old_logprobs,
        advantages=torch.tensor([advantages], dtype=torch.float64),
        mask=torch.ones(1, len(ratios)),
        **optional,
    )
