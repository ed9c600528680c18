"""Asymmetric PPO: several small critics, and what their disagreement says about a state.

Liu et al., "Asymmetric proximal policy optimization: mini-critics boost LLM reasoning", arXiv 2510.01656.
"""

from __future__ import annotations

import torch
from torch import Tensor


def divide_responses(groups: Tensor, num_critics: int, generator: torch.Generator) -> Tensor:
    """The critic that trains on each response. (N,) int64 groups → (N,) int64 in [0, num_critics).

    Every response has one critic; those of a group are dealt at random, and no critic gets two more of a group than
    another, nor of the batch. Each critic so learns from every prompt, and no two from the same response.
    """
    shuffled = torch.randperm(len(groups), generator=generator)
    order = shuffled[groups[shuffled].argsort(stable=True)]
    critics = torch.empty_like(order)
    critics[order] = torch.arange(len(groups)) % num_critics
    return critics


def value_mean_and_std(values: Tensor) -> tuple[Tensor, Tensor]:
    """V̄ and σ over the critics: (M, B, T) → (B, T), (B, T).

    V̄ is the value that generalised advantage estimation uses (γ = λ = 1), σ the population standard deviation: how
    much the critics disagree about the state.
    """
    return values.mean(0), values.std(0, correction=0)


def advantage_mask(std: Tensor, mask: Tensor, fraction: float = 0.2) -> Tensor:
    """I^A: False at the given fraction of the tokens where the critics agree most, and where `mask` is 0.

    There is little left to learn. All (B, T) and of the global batch; the count is exact, to the nearest whole
    token, and among equal σ the first go. During the warm-up of the critics use `mask` itself.
    """
    return _without_lowest(std, mask, fraction)


def entropy_mask(std: Tensor, mask: Tensor, fraction: float = 0.2) -> Tensor:
    """I^H: False at the given fraction of the tokens where the critics disagree most, and where `mask` is 0.

    Exploring there is noise. All (B, T), as `advantage_mask`.
    """
    return _without_lowest(-std, mask, fraction)


def asyppo_loss(
    policy_loss: Tensor, entropy: Tensor, advantage_mask: Tensor, entropy_mask: Tensor, entropy_coef: float = 1e-3
) -> Tensor:
    """I^A·ℓ − β·I^H·H per token, to be minimised: all (B, T), ℓ the loss of PPO.

    Aggregate it with the original mask and seq-mean-token-mean, so that the denominator stays |o|. The paper does
    not give β (`entropy_coef`).
    """
    bonus = torch.where(entropy_mask.bool(), entropy, 0.0)
    return torch.where(advantage_mask.bool(), policy_loss, 0.0) - entropy_coef * bonus


def _without_lowest(scores: Tensor, mask: Tensor, fraction: float) -> Tensor:
    kept = mask.bool().clone()
    tokens = kept.nonzero(as_tuple=True)
    lowest = scores[tokens].argsort(stable=True)[: round(fraction * len(tokens[0]))]
    kept[tuple(index[lowest] for index in tokens)] = False
    return kept
