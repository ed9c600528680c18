"""Which groups are worth training on (dynamic sampling: DAPO, arXiv 2503.14476, section 3.2)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from rlcore.config import FilterConfig
from rlcore.rollout.groups import Group


def filter_of(settings: FilterConfig | None) -> Callable[[Group], bool]:
    """Whether a complete group is to be trained on.

    Without a filter all are. With one, a group needs two responses that were scored; responses that were not count for
    nothing.

    Raises:
        ValueError: `rollout.filter.function` names no function.
    """
    if settings is None:
        return lambda group: True
    function = user_function(settings.function) if settings.function else None
    lowest = -math.inf if settings.min_mean is None else settings.min_mean
    highest = math.inf if settings.max_mean is None else settings.max_mean

    def accepts(group: Group) -> bool:
        rewards = group.rewards
        return (
            len(rewards) > 1
            and lowest <= statistics.fmean(rewards) <= highest
            and statistics.pstdev(rewards) >= settings.min_std
            and (function is None or bool(function(group.prompt.domain, rewards)))
        )

    return accepts


def user_function(path: str) -> Callable[[str, Sequence[float]], Any]:
    """The function that `package.module:name` names: domain and rewards of a group in, whether to train on it out.

    Raises:
        ValueError: there is none.
    """
    module, _, name = path.partition(":")
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"rollout.filter.function: {path!r} cannot be imported ({error}); it is package.module:function of a "
            "module on the Python path"
        ) from error
    if not callable(function):
        raise ValueError(f"rollout.filter.function: {path!r} is no function")
    return function
