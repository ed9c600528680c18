"""Any stage's output of any iteration, printed."""

from __future__ import annotations

from typing import Any

import polars as pl
from rich.console import Console
from rich.table import Table

from rlcore.batches import SCHEMAS, key_column
from rlcore.store import RunStore, StoreError

CELL_WIDTH = 32


def show_output(store: RunStore, iteration: int, stage: str, sample: str | None, console: Console) -> None:
    """Print a batch as a table, or one of its rows in full, or a report.

    Raises:
        StoreError: the stage has no output in that iteration, or no such sample; names what there is.
    """
    entry = store.find(iteration, stage)
    if entry is None:
        there = [e.stage for e in store.ledger() if e.iteration == iteration]
        newest = max((e.iteration for e in store.ledger()), default=None)
        raise StoreError(
            f"{store.url}: iteration {iteration} has no output of {stage!r}; "
            f"it has {', '.join(there) or 'none'}, and the newest iteration is {newest}"
        )
    if entry.output.schema_name not in SCHEMAS:
        console.print_json(store.read_bytes(entry.output.path).decode())
        return
    batch = store.read_batch(entry.output)
    key = key_column(SCHEMAS[entry.output.schema_name])
    if sample is None:
        console.print(_table(batch), soft_wrap=not console.is_terminal)
        return
    row = batch.filter(
        (pl.col(key) == sample) | (pl.col("prompt_id") == sample if "prompt_id" in batch.columns else False)
    )
    if row.is_empty():
        raise StoreError(
            f"{entry.output.path} has no {key} {sample!r}; its first ones: {', '.join(batch[key].head(5))}"
        )
    for values in row.iter_rows(named=True):
        for name, value in values.items():
            console.print(f"[bold]{name}[/]", end="  ")
            console.print(str(value), highlight=False, markup=False, soft_wrap=True)
        console.print()


def _table(batch: pl.DataFrame) -> Table:
    table = Table(title=f"{len(batch)} rows", row_styles=["", "dim"], pad_edge=False)
    for name in batch.columns:
        table.add_column(name.replace("_", "\n"), no_wrap=True)
    for row in batch.iter_rows():
        table.add_row(*(_cell(value) for value in row))
    return table


def _cell(value: Any) -> str:
    """A value in few characters; a list by its length and its mean, or by how many of it are true."""
    match value:
        case None:
            return ""
        case bool():
            return str(value)
        case float():
            return f"{value:.4g}"
        case [bool(), *_]:
            return f"{sum(value)}/{len(value)}"
        case [float(), *_]:
            return f"{len(value)}: ⌀ {sum(value) / len(value):.3g}"
        case [{"name": _}, *_]:
            return ", ".join(f"{part['name']} {part['value']:.3g}" for part in value)
        case [{"content": _}, *_]:
            return _shortened(value[-1]["content"])
        case list():
            return f"{len(value)}"
        case _:
            return _shortened(str(value))


def _shortened(text: str) -> str:
    text = text.replace("\n", "⏎")
    return text if len(text) <= CELL_WIDTH else text[: CELL_WIDTH - 1] + "…"
