"""What a model was trained on, and what that did to it: the README.md of an exported directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlcore.compose import dump
from rlcore.config import Config
from rlcore.tracking.history import RunHistory

FRONT_MATTER = """\
---
library_name: transformers
pipeline_tag: text-generation
tags: [reinforcement-learning, rlvr]
---
"""


def model_card(history: RunHistory, iteration: int) -> str:
    """Markdown, from the run's configuration and metrics.

    Args:
        iteration: the one after which the weights were saved.
    """
    config = history.config
    parts = [
        f"{FRONT_MATTER}\n# {config.run}, iteration {iteration}",
        f"{Path(config.model.path).name}, trained for {iteration} of {config.iterations} iterations by reinforcement "
        "learning with verifiable rewards.",
        _table(("", ""), _facts(config, iteration)),
        f"## Held-out accuracy\n\n{_accuracy(history.metrics, iteration)}",
        f"## Configuration\n\n```yaml\n{dump(config)}```",
    ]
    return "\n\n".join(parts) + "\n"


def _facts(config: Config, iteration: int) -> list[tuple[str, str]]:
    algorithm, rollout, trainer = config.algorithm, config.rollout, config.trainer
    responses = rollout.rollout_batch_size * rollout.num_return_sequences_in_group
    return [
        ("base model", f"`{config.model.path}`"),
        ("training prompts", _files(config.data.train)),
        ("held-out prompts", _files(config.data.held_out)),
        *(
            (f"reasoning-gym's {source.task}", f"{source.train} problems, and {source.held_out} held out")
            for source in config.data.reasoning_gym
        ),
        ("domains", ", ".join(_domains(config))),
        ("algorithm", f"{algorithm.adv_estimator} advantages, {algorithm.policy_loss} loss, {algorithm.loss_agg_mode}"),
        (
            "rollouts",
            f"{iteration} × {responses} responses of at most {rollout.response_length} tokens, "
            f"{rollout.num_return_sequences_in_group} to a prompt, at temperature {rollout.temperature:g}",
        ),
        ("learning rate", f"{trainer.learning_rate:g}, {trainer.lr_scheduler_type}"),
        ("seed", str(config.seed)),
    ]


def _files(paths: list[str]) -> str:
    return ", ".join(f"`{path}`" for path in paths) or "none"


def _domains(config: Config) -> list[str]:
    """Each domain that was sampled, with its share of the prompts and its graders."""
    return [
        f"{domain} {share:.0%} (graded by {', '.join(each.grader for each in config.rewards[domain].weighted_graders)})"
        for domain, share in config.data.domain_interleave_probs.items()
        if share
    ]


def _accuracy(metrics: list[dict[str, float]], iteration: int) -> str:
    """Greedy answers before training and after `iteration`, or at the last evaluation before it."""
    evaluated = [row for row in metrics if "eval/accuracy" in row and row["iteration"] <= iteration]
    if not evaluated:
        return "Not measured."
    shown = evaluated if len(evaluated) == 1 else [evaluated[0], evaluated[-1]]
    names = [key.removesuffix("/accuracy") for key in shown[-1] if key.endswith("/accuracy")]
    header = ("prompts", *(_when(row["iteration"]) for row in shown))
    rows = [
        ("all" if name == "eval" else name.removeprefix("eval/"), *(_cell(row, name) for row in shown))
        for name in names
    ]
    note = "One greedy answer to each held-out prompt; in brackets, the 95 % interval."
    if shown[-1]["iteration"] != iteration:
        note += f" Iteration {iteration} itself was not evaluated."
    return f"{_table(header, rows)}\n\n{note}"


def _when(iteration: float) -> str:
    return f"after iteration {iteration:.0f}" if iteration else "before training"


def _cell(row: dict[str, float], name: str) -> str:
    if f"{name}/accuracy" not in row:
        return "—"
    return f"{row[f'{name}/accuracy']:.3f} ({row[f'{name}/low']:.3f}–{row[f'{name}/high']:.3f})"


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
