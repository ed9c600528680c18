"""The progress of a run in the terminal, from what it writes to its directory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live

from rlcore.tracking.history import read_metrics
from rlcore.tracking.table import render, row_line

REFRESH_SECONDS = 1.0


@contextmanager
def shown(run_directory: Path, console: Console) -> Iterator[None]:
    """The live table while the block runs; a line per iteration where the output is not a terminal."""
    if console.is_terminal:
        with Live(
            get_renderable=lambda: render(run_directory), console=console, refresh_per_second=1 / REFRESH_SECONDS
        ):
            yield
        return
    ended = threading.Event()
    printer = threading.Thread(target=_print_lines, args=(run_directory, console, ended), daemon=True)
    printer.start()
    try:
        yield
    finally:
        ended.set()
        printer.join()


def follow(run_directory: Path, console: Console) -> None:
    """Show the run until interrupted."""
    try:
        with shown(run_directory, console):
            while True:
                time.sleep(REFRESH_SECONDS)
    except KeyboardInterrupt:
        return


def _print_lines(run_directory: Path, console: Console, ended: threading.Event) -> None:
    printed = len(read_metrics(run_directory))
    last = False
    while not last:
        last = ended.wait(REFRESH_SECONDS)
        rows = read_metrics(run_directory)
        for row in rows[printed:]:
            console.print(row_line(row), highlight=False, soft_wrap=True)
        printed = len(rows)
