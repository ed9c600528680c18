"""A reward function of the user's own: `module:function`, from a package that is installed or on PYTHONPATH.

The function takes the response and the ground truth, both text, and returns a number, or a dictionary of components
with one named `reward`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

from rlcore.rewards.interface import Score


def grade(response_text: str, ground_truth: str, *, path: str) -> Score:
    """What the function says.

    Args:
        path: `module:function`.

    Components: the other entries of the dictionary that it returns.

    Raises:
        ImportError, AttributeError: there is no such function.
        TypeError: it returns something else.
        ValueError: a value is not finite.
        Whatever the function raises.
    """
    verdict = _function(path)(response_text, ground_truth)
    values = verdict if isinstance(verdict, Mapping) else {"reward": verdict}
    # NumPy's and torch's numbers are numbers too.
    numbers = {name: value.item() if hasattr(value, "item") else value for name, value in values.items()}
    if "reward" not in numbers or not all(isinstance(value, Real) for value in numbers.values()):
        raise TypeError(f"{path} returned {verdict!r}: expected a number, or a dictionary of numbers with a reward")
    return Score(float(numbers.pop("reward")), {name: float(value) for name, value in numbers.items()})


@functools.cache
def _function(path: str) -> Callable[[str, str], Any]:
    module, colon, name = path.partition(":")
    if not colon:
        raise ImportError(f"{path!r} does not say which function it is: expected module:function")
    function: Callable[[str, str], Any] = getattr(importlib.import_module(module), name)
    return function
