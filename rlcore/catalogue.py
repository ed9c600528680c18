"""The algorithms there are, from the code itself: what `rlvr algorithms` prints."""

from __future__ import annotations

from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Table

from rlcore.algorithms.advantages import ESTIMATORS
from rlcore.algorithms.aggregation import MODES
from rlcore.algorithms.kl import KINDS
from rlcore.algorithms.losses import LOSSES
from rlcore.compose import REPOSITORY

PRESETS = REPOSITORY / "configs" / "algorithm"


def print_catalogue(console: Console) -> None:
    """Losses, advantage estimators and presets, each with its options and source; aggregations and KL estimators."""
    losses = Table("policy_loss", "idea", "options", "source", title="Policy losses", title_justify="left")
    for name, loss in sorted(LOSSES.items()):
        losses.add_row(name, loss.idea, _options(loss.options), loss.source)
    estimators = Table("adv_estimator", "idea", "options", "source", title="Advantages", title_justify="left")
    for name, estimator in sorted(ESTIMATORS.items()):
        estimators.add_row(name, estimator.idea, _options(estimator.options), estimator.source)
    presets = Table("algorithm=", "what it is", "settings", title="Presets", title_justify="left")
    for path in sorted(PRESETS.glob("*.yaml")):
        presets.add_row(path.stem, comment(path), _options(settings(path)))
    for table in (losses, estimators, presets):
        console.print(table)
    console.print(f"loss_agg_mode: {', '.join(MODES)}", highlight=False)
    console.print(f"kl_penalty, kl_loss_type: {', '.join(KINDS)}", highlight=False)


def comment(preset: Path) -> str:
    """The comment at the head of a preset."""
    lines = preset.read_text().splitlines()
    head = lines[: next(number for number, line in enumerate(lines) if not line.startswith("#"))]
    return " ".join(line.removeprefix("#").strip() for line in head)


def settings(preset: Path) -> dict[str, object]:
    """What a preset sets, those that it builds on included."""
    values = yaml.safe_load(preset.read_text())
    bases = [name for name in values.pop("defaults", []) if name != "_self_"]
    merged: dict[str, object] = {}
    for base in bases:
        merged |= settings(preset.with_name(f"{base}.yaml"))
    return merged | values


def _options(options: dict[str, object]) -> str:
    return "\n".join(f"{name}={'null' if value is None else value}" for name, value in options.items())
