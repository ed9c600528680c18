"""The policy losses there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from rlcore.algorithms.inputs import LossInputs
from rlcore.algorithms.registry import Entry, Registry, choices, keywords

LossFunction = Callable[..., tuple[Tensor, dict[str, Tensor]]]
Function = TypeVar("Function", bound=LossFunction)


@dataclass(frozen=True, slots=True)
class Loss(Entry):
    """A policy loss: f(LossInputs, *, options…) → (token_loss (B, T), metrics)."""

    needs: tuple[str, ...]
    """Optional fields of LossInputs that it does not work without."""
    select: Callable[..., Tensor] | None
    """(old_logprobs, advantages, mask, **some of the options) -> selected, of the whole batch: `batch_selection`."""
    denominator: Callable[..., Tensor] | None
    """(LossInputs, **some of the options) -> log π_old, where it is not `LossInputs.old_logprobs`."""


LOSSES: Registry[Loss] = Registry("policy loss")


def loss(
    name: str,
    *,
    source: str,
    needs: Iterable[str] = (),
    select: Callable[..., Tensor] | None = None,
    denominator: Callable[..., Tensor] | None = None,
) -> Callable[[Function], Function]:
    """Registers the decorated function as a policy loss; its keyword-only parameters are the loss's options.

    Raises:
        ValueError: the name is taken.
    """

    def register(function: Function) -> Function:
        LOSSES.add(Loss(name, function, source, tuple(needs), select, denominator))
        return function

    return register


def policy_loss(name: str, inputs: LossInputs, **options: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of every token, to be minimised, and its metrics.

    Returns:
        token_loss (B, T), differentiable in `inputs.logprobs` and 0 where masked; and scalar metrics without
        gradient. Each metric is a sum over the tokens that train: add those of all micro-batches and ranks, then
        divide by the number of tokens of the whole batch, and the split changes nothing.

    Raises:
        ValueError: no loss of that name, an option's value is out of range, or the loss needs a tensor that
            `inputs` does not have.
        TypeError: the loss has no such option.
    """
    chosen = LOSSES.find(name)
    _check_options(chosen, options)
    missing = [field for field in chosen.needs if getattr(inputs, field) is None]
    if missing:
        raise ValueError(f"policy loss {name!r} needs LossInputs.{' and '.join(missing)}")
    return chosen.function(inputs, **options)


def batch_selection(name: str, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, **options: Any) -> Tensor | None:
    """`LossInputs.selected` of the whole batch, for a loss that treats some of its tokens apart; None for any other.

    To be called once, with the tokens of all micro-batches and ranks and the options of the loss; each micro-batch
    then takes its rows of the result.

    Args:
        old_logprobs, advantages, mask: of one shape, (B, T) or the flat tokens of every row.

    Raises:
        ValueError, TypeError: as `policy_loss`.
    """
    chosen = LOSSES.find(name)
    _check_options(chosen, options)
    if chosen.select is None:
        return None
    return chosen.select(old_logprobs, advantages, mask, **_options_of(chosen.select, chosen, options))


def ratio_denominator(name: str, inputs: LossInputs, **options: Any) -> Tensor:
    """log π_old of the ratio π/π_old that the loss clips or weighs with, without gradient: (B, T).

    `LossInputs.old_logprobs`, unless the loss approximates it.

    Raises:
        ValueError, TypeError: as `policy_loss`.
    """
    chosen = LOSSES.find(name)
    _check_options(chosen, options)
    if chosen.denominator is None:
        return inputs.old_logprobs
    return chosen.denominator(inputs, **_options_of(chosen.denominator, chosen, options))


def _check_options(chosen: Loss, options: Iterable[str]) -> None:
    known = chosen.options
    for option in options:
        if option not in known:
            raise TypeError(f"policy loss {chosen.name!r} has no option {option!r}; {choices(option, known)}")


def _options_of(function: Callable[..., Any], chosen: Loss, options: dict[str, Any]) -> dict[str, Any]:
    """Those that the function takes, the loss's defaults where they are not given."""
    return {option: (chosen.options | options)[option] for option in keywords(function)}
