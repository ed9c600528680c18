"""The table of advantage estimators: a module of this package adds one with `@estimator(…)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from torch import Tensor

from rlcore.algorithms.registry import Entry, Registry, keywords

Tokens = Literal["returns", "whitened_returns", "gae"]
"""How the score of a response becomes the advantages of its tokens.

The score is the reward of the last token that trains; a KL penalty is charged to every token. Then:
returns: the discounted return. whitened_returns: the discounted return, whitened over the whole batch.
gae: generalised advantage estimation with the values of a critic.
"""

EstimatorFunction = Callable[..., Tensor]
Function = TypeVar("Function", bound=EstimatorFunction)


@dataclass(frozen=True, slots=True)
class Estimator(Entry):
    """An advantage estimator: f(rewards (N,), groups (N,), *, inputs…, options…) → (N,)."""

    tokens: Tokens

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the tensors (N,) that it needs beside rewards and groups: keywords without a default."""
        parameters = keywords(self.function).items()
        return tuple(name for name, default in parameters if default is inspect.Parameter.empty)


ESTIMATORS: Registry[Estimator] = Registry("group advantage")


def estimator(name: str, *, source: str, tokens: Tokens) -> Callable[[Function], Function]:
    """Enters the decorated function in the table under `name`.

    Raises:
        ValueError: the name is taken.
    """

    def register(function: Function) -> Function:
        ESTIMATORS.add(Estimator(name, function, source, tokens))
        return function

    return register
