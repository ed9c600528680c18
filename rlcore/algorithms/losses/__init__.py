"""Policy losses per token, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from rlcore.algorithms.inputs import LossInputs
from rlcore.algorithms.losses.ppo import ppo_loss
from rlcore.algorithms.losses.reinforce import reinforce_loss

LOSSES: dict[str, Callable[..., tuple[Tensor, dict[str, Tensor]]]] = {
    "ppo": ppo_loss,
    "reinforce": reinforce_loss,
}


def policy_loss(name: str, inputs: LossInputs, **options: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of every token, to be minimised, and its metrics.

    Returns:
        token_loss (B, T), differentiable in `inputs.logprobs` and 0 where masked; and scalar metrics without
        gradient. Each metric is a sum over the tokens that train: add those of all micro-batches and ranks, then
        divide by the number of tokens of the whole batch, and the split changes nothing.

    Raises:
        ValueError: no loss of that name.
        TypeError: the loss has no such option.
    """
    if name not in LOSSES:
        raise ValueError(f"no policy loss {name!r}; there are {', '.join(LOSSES)}")
    return LOSSES[name](inputs, **options)
