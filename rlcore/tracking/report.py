"""The report of a run: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from rlcore.plan import INPUTS
from rlcore.rollout.schedule import read_schedule
from rlcore.store import LedgerEntry, RunStore
from rlcore.tracking.accuracy import RIGHT, accuracy
from rlcore.tracking.history import RunHistory, read_history
from rlcore.tracking.svg import Series, line_chart, spans_chart, stacked_bars
from rlcore.tracking.table import Row, format_seconds

MOST_RESPONSES = 50
"""Shown of one outcome. All are in the parquet files."""

SCHEDULED_ITERATIONS = 8
"""The newest ones, of which the report shows when engines and trainer worked."""
TRAINER_STAGES = ("old_logprob", "update")

OUTCOMES = (
    ("wrong, then right", False, True),
    ("right, then wrong", True, False),
    ("wrong both times", False, False),
    ("right both times", True, True),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Held-out prompts whose answers were judged the same way before and after."""

    title: str
    total: int
    rows: list[dict[str, Any]]
    """The first MOST_RESPONSES: domain, prompt_text, ground_truth, before, after, and was_right, is_right."""


def write_report(run_directory: Path) -> Path:
    """Write `report.html` into the run directory, anew each time.

    Raises:
        FileNotFoundError: no run is there.
        StoreError, BatchError: the ledger or an evaluation is damaged.
    """
    history, store = read_history(run_directory), RunStore(str(run_directory))
    # Of an iteration that was evaluated again, the newer one.
    evaluations = {entry.iteration: entry for entry in history.ledger if entry.stage == "evaluate"}
    first = evaluations[min(evaluations)] if evaluations else None
    last = evaluations[max(evaluations)] if len(evaluations) > 1 else None
    template = _environment().get_template("report.html.j2")
    page = template.render(
        run=history.config.run,
        model=Path(history.config.model.path).name,
        iterations=history.finished_iterations,
        planned=history.config.iterations,
        seconds=format_seconds(history.seconds),
        first=first,
        last=last,
        domains=_domain_accuracies(store, first, last),
        charts=_charts(history.metrics),
        timings=Markup(_stage_timings(history)),
        schedule=Markup(schedule_svg(store, history.ledger)),
        outcomes=_outcomes(store, first, last),
        config=(run_directory / "config.yaml").read_text(),
    )
    store.write_bytes("report.html", page.encode())
    return run_directory / "report.html"


def learning_curve_svg(rows: Sequence[Row]) -> str:
    """Sampled reward and held-out accuracy, with its 95 % band, over the iterations; empty without either."""
    reward, held_out = _series("sampled reward", rows, "reward/mean"), _accuracy_series(rows)
    series = [line for line in (held_out, reward) if line.points]
    shares = all(0 <= y <= 1 for line in series for _, y in line.points)
    return line_chart(series, width=620, height=250, y_range=(0, 1) if shares else None, name="learning curve")


def _environment() -> Environment:
    # Escapes everything, whatever the template is called: responses are text that a model made up.
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _charts(rows: Sequence[Row]) -> list[dict[str, str | Markup]]:
    """Title and picture of every curve that has points."""
    domains = sorted({key for row in rows for key in row if key.startswith("reward/") and key.count("/") == 1})
    rewards = [_series(key.removeprefix("reward/"), rows, key) for key in domains if key != "reward/mean"]
    kl = "train/reference_kl_k3" if any("train/reference_kl_k3" in row for row in rows) else "train/approx_kl_k3"
    charts = {
        "Response length, tokens": [_series("mean length", rows, "response/length_mean")],
        "Entropy, nats": [_series("entropy", rows, "train/entropy")],
        f"KL to the {'reference model' if 'reference' in kl else 'policy before the update'}": [
            _series("KL", rows, kl)
        ],
        "Gradient norm": [_series("gradient norm", rows, "train/grad_norm")],
        "Clipped share of tokens": [_series("clip fraction", rows, "train/clip_fraction")],
    }
    drawn = [
        ("Held-out accuracy and sampled reward", learning_curve_svg(rows), "wide"),
        # As tall as its neighbour.
        ("Sampled reward by domain", line_chart(rewards, height=300, name="sampled reward by domain"), "small"),
        *((title, line_chart(series, name=title), "small") for title, series in charts.items()),
    ]
    return [{"title": title, "svg": Markup(svg), "kind": kind} for title, svg, kind in drawn if svg]


def _series(label: str, rows: Sequence[Row], key: str) -> Series:
    return Series(label, [(row["iteration"], row[key]) for row in rows if key in row])


def _accuracy_series(rows: Sequence[Row]) -> Series:
    evaluated = [row for row in rows if "eval/accuracy" in row]
    band = [(row["eval/low"], row["eval/high"]) for row in evaluated]
    return Series("held-out accuracy, 95 % interval", _series("", evaluated, "eval/accuracy").points, band)


def _stage_timings(history: RunHistory) -> str:
    """Seconds of every stage of every iteration, stacked; the legend has their means."""
    rows = [row for row in history.metrics if row["iteration"] > 0]
    stages = [stage for stage in INPUTS if any(f"seconds/{stage}" in row for row in rows)]
    labels = []
    for stage in stages:
        values = [row[f"seconds/{stage}"] for row in rows if f"seconds/{stage}" in row]
        labels.append(f"{stage} {sum(values) / len(values):.1f} s")
    bars = [(row["iteration"], [row.get(f"seconds/{stage}", 0.0) for stage in stages]) for row in rows]
    return stacked_bars(bars, labels, name="seconds per stage and iteration")


def schedule_svg(store: RunStore, ledger: Sequence[LedgerEntry]) -> str:
    """When engines and trainer worked in the newest iterations; empty where nothing says."""
    last = max((entry.iteration for entry in ledger if entry.stage == "update"), default=0)
    shown = range(max(1, last - SCHEDULED_ITERATIONS + 1), last + 1)
    lanes: dict[str, list[tuple[float, float, str]]] = {}
    for iteration in shown:
        schedule = read_schedule(store, iteration)
        for name, engine in schedule.engines.items() if schedule else ():
            lanes.setdefault(name, []).extend((*span, f"generates until batch {iteration}") for span in engine.busy)
    trainer = [
        (entry.started_at, entry.finished_at, f"{entry.stage} of iteration {entry.iteration}")
        for entry in ledger
        if entry.iteration in shown and entry.stage in TRAINER_STAGES
    ]
    if not lanes or not trainer:
        return ""
    lanes = {**dict(sorted(lanes.items())), "trainer": trainer}
    start = min(span[0] for lane in lanes.values() for span in lane)
    moved = {name: [(low - start, high - start, what) for low, high, what in lane] for name, lane in lanes.items()}
    return spans_chart(moved, name="engines and trainer over time")


def _domain_accuracies(store: RunStore, first: LedgerEntry | None, last: LedgerEntry | None) -> list[dict[str, Any]]:
    """Accuracy over all domains, then of each, in the first and the last evaluation."""
    if first is None:
        return []
    before, after = store.read_batch(first.output), None if last is None else store.read_batch(last.output)
    names = before["domain"].unique(maintain_order=True).to_list()
    return [
        {
            "domain": name or "all",
            "prompts": len(_of_domain(before, name)),
            "before": accuracy(_of_domain(before, name)),
            "after": None if after is None else accuracy(_of_domain(after, name)),
        }
        for name in (None, *names)
    ]


def _of_domain(evaluation: pl.DataFrame, domain: str | None) -> pl.DataFrame:
    return evaluation if domain is None else evaluation.filter(pl.col("domain") == domain)


def _outcomes(store: RunStore, first: LedgerEntry | None, last: LedgerEntry | None) -> list[Outcome]:
    """Every held-out prompt with its first and its last answer, by how they were judged."""
    if first is None or last is None:
        return []
    before = store.read_batch(first.output).select(
        "prompt_id", pl.col("response_text").alias("before"), RIGHT.alias("was_right")
    )
    after = store.read_batch(last.output).select(
        "prompt_id",
        "domain",
        "prompt_text",
        "ground_truth",
        pl.col("response_text").alias("after"),
        RIGHT.alias("is_right"),
    )
    both = after.join(before, on="prompt_id", how="inner", maintain_order="left")
    outcomes = []
    for title, was_right, is_right in OUTCOMES:
        rows = both.filter(pl.col("was_right") == was_right, pl.col("is_right") == is_right)
        outcomes.append(Outcome(title, len(rows), rows.head(MOST_RESPONSES).to_dicts()))
    ungraded = both.filter(pl.col("was_right").is_null() | pl.col("is_right").is_null())
    outcomes.append(Outcome("not graded at least once", len(ungraded), ungraded.head(MOST_RESPONSES).to_dicts()))
    return [outcome for outcome in outcomes if outcome.total]
