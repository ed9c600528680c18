"""Policy losses per token, by name: every module of this package is imported, and registers what it defines."""

from __future__ import annotations

import importlib
import pkgutil

from rlcore.algorithms.losses.registry import LOSSES, Loss, batch_selection, policy_loss, ratio_denominator

__all__ = ["LOSSES", "Loss", "batch_selection", "policy_loss", "ratio_denominator"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
