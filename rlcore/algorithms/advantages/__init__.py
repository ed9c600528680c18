"""Advantages of whole responses from the rewards of their group, by name.

A new file of this package that registers its function with `@estimator(…)` is found by itself.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import torch
from torch import Tensor

from rlcore.algorithms.advantages.registry import ESTIMATORS, Estimator
from rlcore.algorithms.registry import choices

__all__ = ["ESTIMATORS", "Estimator", "group_advantages"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def group_advantages(name: str, rewards: Tensor, groups: Tensor, **options: Any) -> Tensor:
    """One advantage per response, computed in float64.

    Args:
        name: of the estimator.
        rewards: (N,) float. NaN marks a response without a reward: it enters no baseline, its advantage is 0.
        groups: (N,) int64. Responses with the same number answer the same prompt; any order, any numbers.
        options: of the estimator, and the further tensors (N,) that it needs (`Estimator.inputs`).

    Returns:
        (N,), of the dtype of `rewards`.

    Raises:
        ValueError: no estimator of that name, or a tensor that is not (N,).
        TypeError: the estimator has no such option, or a tensor that it needs is missing.
    """
    entry = ESTIMATORS.find(name)
    for option in options:
        known = [*entry.inputs, *entry.options]
        if option not in known:
            raise TypeError(f"group advantage {name!r} has no option {option!r}; {choices(option, known)}")
    missing = [needed for needed in entry.inputs if needed not in options]
    if missing:
        raise TypeError(f"group advantage {name!r} needs {', '.join(missing)}: a tensor (N,) each")
    for what, tensor in {"groups": groups, **{needed: options[needed] for needed in entry.inputs}}.items():
        if rewards.ndim != 1 or tensor.shape != rewards.shape:
            raise ValueError(f"rewards {tuple(rewards.shape)} and {what} {tuple(tensor.shape)} must both be (N,)")
    return entry.function(rewards.to(torch.float64), groups, **options).to(rewards.dtype)
