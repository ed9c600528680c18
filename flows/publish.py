"""What an iteration shows: its metrics to the trackers, artifacts to Prefect, the report whenever it was evaluated."""

from __future__ import annotations

import asyncio
import atexit
import base64
import functools
import re

from prefect.artifacts import acreate_markdown_artifact

from rlcore.compose import load
from rlcore.iteration import Iteration
from rlcore.store import RunStore
from rlcore.tracking.history import read_metrics
from rlcore.tracking.metrics import Metrics, read_iteration_metrics
from rlcore.tracking.outputs import IterationOutputs
from rlcore.tracking.report import learning_curve_svg, write_report
from rlcore.tracking.sinks import Tracker

SAMPLED_RESPONSES = 3


async def publish(it: Iteration) -> Metrics:
    """Log and show a finished iteration, from what its stages left on disk; its metrics."""
    outputs = IterationOutputs(it.store, it.number)
    metrics = read_iteration_metrics(outputs)
    tracker(it.store.url).log(it.number, metrics)
    shows_responses = it.number > 0 and all(map(outputs.is_intact, ("generate", "reward")))
    await asyncio.gather(
        _artifact(it, "metrics", metrics_table(it.number, metrics)),
        _artifact(it, "learning-curve", _image(learning_curve_svg(read_metrics(it.store.directory)))),
        *([_artifact(it, "responses", sampled_responses(outputs))] if shows_responses else []),
    )
    if "eval/accuracy" in metrics:
        write_report(it.store.directory)
    return metrics


@functools.cache
def tracker(run_url: str) -> Tracker:
    """One writer for as long as this process trains this run."""
    store = RunStore(run_url)
    opened = Tracker(store.directory, load(store.read_bytes("config.yaml").decode()))
    atexit.register(opened.close)
    return opened


def metrics_table(iteration: int, metrics: Metrics) -> str:
    """Markdown: one line per metric."""
    lines = [f"| {name} | {value:.6g} |" for name, value in metrics.items()]
    return "\n".join([f"## Iteration {iteration}", "", "| metric | value |", "|---|---:|", *lines])


def sampled_responses(outputs: IterationOutputs) -> str:
    """Markdown: the prompt, response and reward of a few responses, the same few whenever it is asked."""
    rollouts, rewards = outputs.batch("generate"), outputs.batch("reward")
    rows = rollouts.join(rewards.select("sample_id", "reward", "reward_status"), on="sample_id").sample(
        min(SAMPLED_RESPONSES, len(rollouts)), seed=outputs.iteration
    )
    parts = [f"## Iteration {outputs.iteration}"]
    for row in rows.iter_rows(named=True):
        score = "—" if row["reward"] is None else f"{row['reward']:g}"
        parts.append(
            f"### {row['sample_id']} · reward {score} ({row['reward_status']})\n\n"
            f"{_quoted(row['prompt_text'])}\n\n{_quoted(row['response_text'])}\n\nground truth: `{row['ground_truth']}`"
        )
    return "\n\n".join(parts)


def _quoted(text: str) -> str:
    """A code block that the text cannot close."""
    fence = "`" * (max((len(run) for run in re.findall(r"`+", text)), default=2) + 1)
    return f"{fence}text\n{text}\n{fence}"


def _image(svg: str) -> str:
    return f"![learning curve](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"


async def _artifact(it: Iteration, name: str, markdown: str) -> None:
    run = re.sub(r"[^a-z0-9]+", "-", it.config.run.lower()).strip("-")
    await acreate_markdown_artifact(markdown, key=f"{run}-{name}", description=f"iteration {it.number}")
