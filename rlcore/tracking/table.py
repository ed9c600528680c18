"""The progress of a run as a table in the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from rlcore.tracking.history import RunHistory, read_history
from rlcore.tracking.running import counts

ROWS = 15
GAPS = (2, 1)
"""Blank columns between two columns of the table; the first that lets everything fit, else the last."""

LONGEST_WORD = 10
"""Of a domain's name in a header."""

Row = dict[str, float]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: how a metrics row fills it, and when it gives way."""

    header: str
    """One line or several."""
    cell: Callable[[Row], str]
    rank: int = 0
    """Where the terminal is too narrow, columns of the highest rank are left out first. 0: never."""
    style: str = ""


def render(run_directory: Path, now: float | None = None) -> RenderableType:
    """Title, the newest iterations, and the stages that run now; fits the console that prints it.

    Args:
        now: Unix time that the running stages are timed against; default the clock's.

    Raises:
        FileNotFoundError: no run is there.
        StoreError: the ledger cannot be read.
    """
    history = read_history(run_directory)
    return Progress(history, counts(run_directory, history.running_stages), time.time() if now is None else now)


def row_line(row: Row) -> str:
    """An iteration's metrics as one line, for an output that is not a terminal."""
    domains = sorted(key.removeprefix("reward/") for key in row if key.startswith("reward/") and key.count("/") == 1)
    columns = _columns([domain for domain in domains if domain != "mean"])
    cells = ((column.header.replace("\n", " "), column.cell(row)) for column in columns)
    return " · ".join(f"{header} {cell}" for header, cell in cells if cell)


@dataclass(frozen=True, slots=True)
class Progress:
    """A run's history, drawn as wide as the console is."""

    history: RunHistory
    counts: dict[str, str]
    """How far the stages are that run."""
    now: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield _title(self.history)
        if self.history.metrics:
            yield _table(self.history, options.max_width)
        if failures := _grader_failures(self.history.metrics):
            yield failures
        if skipped := _skipped_steps(self.history.metrics):
            yield skipped
        yield _running(self.history, self.counts, self.now)


def format_seconds(seconds: float) -> str:
    """45 s · 3 min 10 s · 1 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _title(history: RunHistory) -> Text:
    finished, planned = history.finished_iterations, history.config.iterations
    title = Text(history.config.run, style="bold")
    title.append(f" · iteration {finished} of {planned} · {format_seconds(history.seconds)}", style="not bold")
    each = history.seconds_per_iteration
    if each is not None and finished < planned:
        title.append(f" · about {format_seconds(each * (planned - finished))} left", style="not bold")
    return title


def _table(history: RunHistory, width: int) -> Table:
    rows = history.metrics[-ROWS:]
    columns = _columns(list(history.config.data.domain_interleave_probs))
    gap = next((gap for gap in GAPS if _needed(columns, rows, gap) <= width), GAPS[-1])
    # The column of the highest rank goes first, the rightmost among equals.
    while _needed(columns, rows, gap) > width and (highest := max(column.rank for column in columns)) > 0:
        del columns[max(index for index, column in enumerate(columns) if column.rank == highest)]
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column.header, justify="right", vertical="bottom", no_wrap=True, style=column.style)
    for row in rows:
        table.add_row(*(column.cell(row) for column in columns))
    return table


def _columns(domains: Sequence[str]) -> list[Column]:
    rewards = [Column(_domain_header(name), _number(f"reward/{name}", 2), rank=1) for name in domains]
    return [
        Column("iter", lambda row: f"{row['iteration']:.0f}"),
        *rewards,
        Column("held-out", _number("eval/accuracy", 2), style="bold"),
        Column("length", _number("response/length_mean", 1), rank=2),
        Column("KL", _kl, rank=3),
        Column("clip", _number("train/clip_fraction", 3), rank=5),
        Column("entropy", _number("train/entropy", 2), rank=6),
        Column("grad\nnorm", _number("train/grad_norm", 2), rank=7),
        Column("gen\ns", _number("seconds/generate", 1), rank=4),
        Column("update\ns", _number("seconds/update", 1), rank=4),
        Column("other\ns", _other_seconds, rank=8),
        Column("stale", _number("rollout/staleness_mean", 1), rank=9),
    ]


def _domain_header(domain: str) -> str:
    words = (word if len(word) <= LONGEST_WORD else f"{word[: LONGEST_WORD - 1]}…" for word in domain.split("_"))
    return "\n".join(("reward", *words))


def _needed(columns: list[Column], rows: list[Row], gap: int) -> int:
    """Width of the table."""
    texts = ([*column.header.split("\n"), *(column.cell(row) for row in rows)] for column in columns)
    return sum(max(map(len, column)) + gap for column in texts) - gap


def _number(key: str, digits: int) -> Callable[[Row], str]:
    return lambda row: f"{row[key]:.{digits}f}" if key in row else ""


def _kl(row: Row) -> str:
    """To the reference model where there is one, else to the policy before the update."""
    return _number("train/reference_kl_k3" if "train/reference_kl_k3" in row else "train/approx_kl_k3", 4)(row)


def _other_seconds(row: Row) -> str:
    if row["iteration"] == 0:
        return ""
    shown = ("seconds/generate", "seconds/update")
    return f"{sum(value for key, value in row.items() if key.startswith('seconds/') and key not in shown):.1f}"


def _grader_failures(rows: list[Row]) -> Text | None:
    """Said of the newest iteration, because responses without a reward do not train."""
    newest = rows[-1] if rows else {}
    failed = {
        key.removeprefix("reward/status/"): value
        for key, value in newest.items()
        if key.startswith("reward/status/") and key != "reward/status/scored" and value
    }
    if not failed:
        return None
    kinds = ", ".join(f"{value:.0f} {status}" for status, value in failed.items())
    return Text(f"iteration {newest['iteration']:.0f}: responses without a reward: {kinds}", style="yellow")


def _skipped_steps(rows: list[Row]) -> Text | None:
    """Said of all iterations shown, because a run that does it often is about to fail."""
    counts = {
        row["iteration"]: sum(row.get(f"{model}/skipped_steps", 0) for model in ("train", "critic"))
        for row in rows[-ROWS:]
    }
    skipped = ", ".join(f"{count:.0f} in iteration {number:.0f}" for number, count in counts.items() if count)
    return Text(f"optimizer steps skipped, their gradients not finite: {skipped}", style="yellow") if skipped else None


def _running(history: RunHistory, counts: dict[str, str], now: float) -> Text:
    number = history.finished_iterations + 1
    if number > history.config.iterations:
        return Text("finished", style="green")
    if not history.ledger:
        return Text("starting", style="cyan")
    line = Text(f"iteration {number}:", style="dim")
    for entry in history.ledger:
        if entry.iteration == number:
            line.append(f" {entry.stage} {entry.seconds:.1f}s ·")
    running = (
        " ".join(filter(None, [stage, counts.get(stage), f"{max(now - since, 0):.1f}s"]))
        for stage, since in history.running_stages.items()
    )
    line.append(" " + ", ".join(running), style="bold cyan not dim")
    return line
