"""The table of advantage estimators: a module of this package adds one with `@estimator(…)`."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from torch import Tensor

Tokens = Literal["returns", "whitened_returns", "gae"]
"""How the score of a response becomes the advantages of its tokens.

The score is the reward of the last token that trains; a KL penalty is charged to every token. Then:
returns: the discounted return. whitened_returns: the discounted return, whitened over the whole batch.
gae: generalised advantage estimation with the values of a critic.
"""

EstimatorFunction = Callable[..., Tensor]
Function = TypeVar("Function", bound=EstimatorFunction)


@dataclass(frozen=True, slots=True)
class Estimator:
    """An advantage estimator: f(rewards (N,), groups (N,), *, inputs…, options…) → (N,)."""

    name: str
    function: EstimatorFunction
    source: str
    """The paper."""
    tokens: Tokens

    @property
    def idea(self) -> str:
        """The first line of the docstring."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the tensors (N,) that it needs beside rewards and groups: keywords without a default."""
        return tuple(keyword.name for keyword in self._keywords() if keyword.default is keyword.empty)

    @property
    def options(self) -> dict[str, Any]:
        """Its options and their defaults."""
        return {keyword.name: keyword.default for keyword in self._keywords() if keyword.default is not keyword.empty}

    def _keywords(self) -> list[inspect.Parameter]:
        parameters = inspect.signature(self.function).parameters.values()
        return [parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]


ESTIMATORS: dict[str, Estimator] = {}


def estimator(name: str, *, source: str, tokens: Tokens) -> Callable[[Function], Function]:
    """Enters the decorated function in the table under `name`.

    Raises:
        ValueError: the name is taken.
    """

    def register(function: Function) -> Function:
        if name in ESTIMATORS:
            raise ValueError(f"two advantage estimators are called {name!r}: {ESTIMATORS[name].function}, {function}")
        ESTIMATORS[name] = Estimator(name, function, source, tokens)
        return function

    return register


def find_estimator(name: str) -> Estimator:
    """The estimator of that name.

    Raises:
        ValueError: there is none.
    """
    if name not in ESTIMATORS:
        raise ValueError(f"no group advantage {name!r}; {choices(name, ESTIMATORS)}")
    return ESTIMATORS[name]


def choices(name: str, known: Collection[str]) -> str:
    """The known name that is like an unknown one, if any, and all the known ones."""
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    return f"{hint}there are {', '.join(known)}" if known else "there are none"
