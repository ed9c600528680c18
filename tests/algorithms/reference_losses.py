"""The policy losses once more, from the papers' equations: loops over floats, one response without its gaps at a time.

What a paper puts under a stop-gradient is computed from `frozen`, so that a finite difference in `logprobs` is the
gradient that the paper means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, isfinite, prod
from typing import Any


@dataclass(frozen=True)
class Response:
    """Its tokens that train."""

    logprobs: Sequence[float]
    frozen: Sequence[float]
    old: Sequence[float]
    rollout: Sequence[float]
    advantages: Sequence[float]
    selected: Sequence[bool]
    reward: float

    @property
    def ratios(self) -> list[float]:
        return [exp(new - old) for new, old in zip(self.logprobs, self.old, strict=True)]

    @property
    def frozen_ratios(self) -> list[float]:
        return [exp(new - old) for new, old in zip(self.frozen, self.old, strict=True)]


def clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def surrogate(
    ratio: float, advantage: float, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> float:
    loss = -min(ratio * advantage, clip(ratio, 1 - clip_low, 1 + clip_high) * advantage)
    return min(loss, -dual_clip * advantage) if dual_clip is not None and advantage < 0 else loss


def geometric_mean(values: Sequence[float]) -> float:
    return prod(values) ** (1 / len(values))


def reinforce(response: Response) -> list[float]:
    return [-a * new for a, new in zip(response.advantages, response.logprobs, strict=True)]


def weighted(response: Response, weights: Sequence[float]) -> list[float]:
    return [weight * loss for weight, loss in zip(weights, reinforce(response), strict=True)]


def ppo(
    response: Response, clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float | None = None
) -> list[float]:
    return [
        surrogate(r, a, clip_low, clip_high, dual_clip)
        for r, a in zip(response.ratios, response.advantages, strict=True)
    ]


def gspo(
    response: Response, clip_low: float = 3e-4, clip_high: float = 4e-4, dual_clip: float | None = None
) -> list[float]:
    ratio = geometric_mean(response.ratios)
    return [surrogate(ratio, a, clip_low, clip_high, dual_clip) for a in response.advantages]


def gspo_token(
    response: Response, clip_low: float = 3e-4, clip_high: float = 4e-4, dual_clip: float | None = None
) -> list[float]:
    ratio = geometric_mean(response.frozen_ratios)
    return [
        surrogate(ratio * exp(new) / exp(frozen), a, clip_low, clip_high, dual_clip)
        for new, frozen, a in zip(response.logprobs, response.frozen, response.advantages, strict=True)
    ]


def gmpo(response: Response, clip_low: float = 0.4, clip_high: float = 0.4) -> list[float]:
    clipped = [
        min(r, exp(clip_high)) if a > 0 else max(r, exp(-clip_low))
        for r, a in zip(response.ratios, response.advantages, strict=True)
    ]
    return [-geometric_mean(clipped) * a for a in response.advantages]


def cispo(response: Response, clip_low: float = 1.0, clip_high: float = 3.0, unified_mask: bool = False) -> list[float]:
    def weight(r: float, a: float) -> float:
        if unified_mask and ((a > 0 and r > 1 + clip_high) or (a < 0 and r < 1 - clip_low)):
            return 0.0
        return clip(r, 1 - clip_low, 1 + clip_high)

    weights = [weight(r, a) for r, a in zip(response.frozen_ratios, response.advantages, strict=True)]
    return weighted(response, weights)


def tis_roll(response: Response) -> list[float]:
    return weighted(response, [min(r, 1.0) for r in response.frozen_ratios])


def topr(
    response: Response, ratio: str = "trajectory", positive_weight: float = 1.0, negative_weight: float = 1.0
) -> list[float]:
    ratios = [
        exp(new - mu) if isfinite(mu) else None for new, mu in zip(response.frozen, response.rollout, strict=True)
    ]
    if ratio == "trajectory":
        product = prod(r for r in ratios if r is not None)
        ratios = [None if r is None else product for r in ratios]
    if response.reward >= 0:
        return weighted(response, [0.0 if r is None else positive_weight for r in ratios])
    return weighted(response, [0.0 if r is None else negative_weight * min(r, 1.0) for r in ratios])


def kimi15(response: Response, tau: float = 0.1) -> list[float]:
    pulls = [tau / 2 * (new - old) ** 2 for new, old in zip(response.logprobs, response.old, strict=True)]
    return [loss + pull for loss, pull in zip(reinforce(response), pulls, strict=True)]


def sapo(response: Response, tau_positive: float = 1.0, tau_negative: float = 1.05) -> list[float]:
    def gate(r: float, tau: float) -> float:
        return 4 / tau / (1 + exp(-tau * (r - 1)))

    return [
        -gate(r, tau_positive if a > 0 else tau_negative) * a
        for r, a in zip(response.ratios, response.advantages, strict=True)
    ]


def opmd(response: Response, tau: float = 1.0) -> list[float]:
    return [loss / (1 + tau) for loss in reinforce(response)]


def clip_cov(response: Response, clip_low: float = 0.2, clip_high: float = 0.2, **selection: Any) -> list[float]:
    losses = ppo(response, clip_low, clip_high)
    return [0.0 if chosen else loss for chosen, loss in zip(response.selected, losses, strict=True)]


def kl_cov(response: Response, kl_coef: float = 1.0, kl_type: str = "abs", **selection: Any) -> list[float]:
    def loss(r: float, a: float, difference: float, chosen: bool) -> float:
        kl = abs(difference) if kl_type == "abs" else r - 1 - difference
        return -r * a + (kl_coef * kl if chosen else 0.0)

    differences = [new - old for new, old in zip(response.logprobs, response.old, strict=True)]
    return [
        loss(*token) for token in zip(response.ratios, response.advantages, differences, response.selected, strict=True)
    ]


def decoupled_ppo(
    response: Response,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    weight: str = "truncate",
    weight_low: float = 0.5,
    weight_high: float = 2.0,
    approximate_old: float | None = None,
) -> list[float]:
    def loss(new: float, frozen: float, old: float, mu: float, a: float) -> float:
        if not isfinite(mu):
            return 0.0
        if approximate_old is not None:
            old = (1 - approximate_old) * mu + approximate_old * frozen
        correction = exp(old - mu)
        if weight == "truncate":
            correction = min(correction, weight_high)
        elif not weight_low <= correction <= weight_high:
            correction = 0.0
        return correction * surrogate(exp(new - old), a, clip_low, clip_high, dual_clip)

    return [
        loss(*token)
        for token in zip(
            response.logprobs, response.frozen, response.old, response.rollout, response.advantages, strict=True
        )
    ]


REFERENCES: dict[str, Callable[..., list[float]]] = {
    function.__name__: function
    for function in (
        *(reinforce, ppo, gspo, gspo_token, gmpo, cispo, topr, tis_roll, kimi15, sapo, opmd),
        *(clip_cov, kl_cov, decoupled_ppo),
    )
}
