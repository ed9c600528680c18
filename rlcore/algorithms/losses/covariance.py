"""Losses that spare the few tokens on which entropy collapses.

Entropy falls with the covariance of log-probability and advantage (Cui et al., arXiv 2505.22617, theorems 1 and 2):
where both are high at once, a step makes likely what was likely already.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from rlcore.algorithms.inputs import LossInputs
from rlcore.algorithms.kl import kl_estimate
from rlcore.algorithms.losses.registry import loss
from rlcore.algorithms.losses.surrogate import check_not_negative, clipped_surrogate, masked
from rlcore.algorithms.metrics import ratio_sums, token_sum
from rlcore.algorithms.ratio import log_ratio


def token_covariances(old_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """(log π_old − its mean)·(A − its mean) of the tokens that train, means over the same tokens. Flat (N,), float64.

    Cui et al., arXiv 2505.22617, equation 10.
    """
    trains = mask.bool()
    # In float64, so that the order in which tokens are added decides no rank.
    logprobs, flat_advantages = old_logprobs.detach()[trains].double(), advantages[trains].double()
    return (logprobs - logprobs.mean()) * (flat_advantages - flat_advantages.mean())


def select_within(
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    fraction: float,
    covariance_low: float,
    covariance_high: float,
    seed: int,
) -> Tensor:
    """A random choice of the tokens whose covariance is between the bounds, as many as `fraction` of all.

    Drawn from the candidates in order of their covariance: the same whatever the order of the rows.

    Returns:
        Of the shape of `mask`, bool: exactly ⌊fraction·N⌋ of the N tokens that train, at least one, or all
        candidates where there are fewer.
    """
    if covariance_low > covariance_high:
        raise ValueError(f"covariance_low {covariance_low} is above covariance_high {covariance_high}")
    covariances = token_covariances(old_logprobs, advantages, mask)
    ranked = covariances.argsort(descending=True, stable=True)
    candidates = ranked[(covariances[ranked] >= covariance_low) & (covariances[ranked] <= covariance_high)]
    drawn = torch.randperm(len(candidates), generator=torch.Generator().manual_seed(seed)).to(candidates.device)
    return _scatter(candidates[drawn[: _count(fraction, len(covariances))]], mask)


def select_highest(old_logprobs: Tensor, advantages: Tensor, mask: Tensor, *, fraction: float) -> Tensor:
    """The tokens of the highest covariance.

    Returns:
        Of the shape of `mask`, bool: exactly ⌊fraction·N⌋ of the N tokens that train, at least one; of equal ones
        those that come first.
    """
    covariances = token_covariances(old_logprobs, advantages, mask)
    ranked = covariances.argsort(descending=True, stable=True)
    return _scatter(ranked[: _count(fraction, len(covariances))], mask)


@loss("clip_cov", source="Cui et al., arXiv 2505.22617, equations 11 and 12 (Clip-Cov)", select=select_within)
def clip_cov_loss(
    inputs: LossInputs,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    fraction: float = 2e-4,
    covariance_low: float = 1.0,
    covariance_high: float = 5.0,
    seed: int = 0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO without the gradient of a few tokens whose log-probability and advantage are high together.

        0 for the selected tokens, else −min(r·A, clip(r, 1 − clip_low, 1 + clip_high)·A),  r = π/π_old

    Cui et al., arXiv 2505.22617, equations 11 and 12. `LossInputs.selected` holds the selection of the whole batch
    (`batch_selection`, from log π_old); left out, it is made among the tokens of `inputs`. Equation 12 has the
    surrogate unclipped, the paper's listing 1 clips it as here.

    Options:
        clip_low, clip_high: as in ppo.
        fraction: of the tokens that are selected, from 0 to 1; at least one token is.
        covariance_low, covariance_high: between which a token may be selected.
        seed: of the random choice among these.

    Metrics beside those of `ratio_sums` and `clipped_surrogate`: covariance_fraction, the selected.
    """
    selected = inputs.selected
    if selected is None:
        selected = select_within(
            inputs.old_logprobs,
            inputs.advantages,
            inputs.mask,
            fraction=fraction,
            covariance_low=covariance_low,
            covariance_high=covariance_high,
            seed=seed,
        )
    ratio = log_ratio(inputs.logprobs, inputs.old_logprobs, inputs.mask).exp()
    token_loss, clipped = clipped_surrogate(ratio, inputs, clip_low=clip_low, clip_high=clip_high)
    metrics = ratio_sums(inputs.logprobs, inputs.old_logprobs, inputs.mask) | clipped
    metrics["covariance_fraction"] = token_sum(selected, inputs.mask)
    return torch.where(selected.bool(), 0.0, token_loss), metrics


@loss("kl_cov", source="Cui et al., arXiv 2505.22617, equations 13 and 14 (KL-Cov)", select=select_highest)
def kl_cov_loss(
    inputs: LossInputs, *, fraction: float = 2e-3, kl_coef: float = 1.0, kl_type: Literal["abs", "k2", "k3"] = "abs"
) -> tuple[Tensor, dict[str, Tensor]]:
    """Hold the tokens whose log-probability and advantage are high together to the old policy by a KL penalty.

        −r·A + β·KL(π_old‖π) for the selected tokens, else −r·A,  r = π/π_old

    Cui et al., arXiv 2505.22617, equations 13 and 14. `LossInputs.selected` holds the selection of the whole batch
    (`batch_selection`, from log π_old); left out, it is made among the tokens of `inputs`.

    Options:
        fraction: of the tokens that are selected, from 0 to 1; at least one token is. The paper's is 2e-3 at 7B
            and 2e-4 at 32B.
        kl_coef: β ≥ 0.
        kl_type: the estimate of the divergence from the one sampled token, as in `kl_estimate`. abs, |log r|, is
            what the paper's listing 1 has; k3 is unbiased.

    Metrics beside those of `ratio_sums`: covariance_fraction (the selected), covariance_kl (their estimates).
    """
    check_not_negative(kl_coef=kl_coef)
    selected = inputs.selected
    if selected is None:
        selected = select_highest(inputs.old_logprobs, inputs.advantages, inputs.mask, fraction=fraction)
    ratio = log_ratio(inputs.logprobs, inputs.old_logprobs, inputs.mask).exp()
    old_logprobs, logprobs = masked(inputs.old_logprobs, inputs.mask), masked(inputs.logprobs, inputs.mask)
    penalty = torch.where(selected.bool(), kl_estimate(old_logprobs, logprobs, kl_type), 0.0)
    metrics = ratio_sums(inputs.logprobs, inputs.old_logprobs, inputs.mask)
    metrics["covariance_fraction"] = token_sum(selected, inputs.mask)
    metrics["covariance_kl"] = token_sum(penalty, inputs.mask)
    return -ratio * masked(inputs.advantages, inputs.mask) + kl_coef * penalty, metrics


def _count(fraction: float, tokens: int) -> int:
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction is a part of the tokens, from 0 to 1, not {fraction}")
    # 0.29·100 is 28.999… in floating point.
    return max(1, math.floor(fraction * tokens + 1e-9)) if tokens else 0


def _scatter(chosen: Tensor, mask: Tensor) -> Tensor:
    """Indices among the tokens that train, as a mask of all."""
    selected = torch.zeros_like(mask, dtype=torch.bool)
    positions = mask.bool().flatten().nonzero().squeeze(-1)
    selected.view(-1)[positions[chosen]] = True
    return selected
