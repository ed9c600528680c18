"""`rlvr train`: the flow `train` in this process, with its services, its live table, and its last line."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from flows import services
from flows.processes import ServiceDied
from flows.runs import open_run
from rlcore.config import Config, model_directory
from rlcore.data.prompts import check_datasets
from rlcore.ownership import owned
from rlcore.store import RunStore

FAILED, INTERRUPTED = 1, 130
DRAIN_SECONDS = 5.0


class TrainingFailed(RuntimeError):
    """The flow failed, of its cause."""


def train_here(settings: Config, config: str, overrides: list[str], console: Console) -> int:
    """Train to the end of the configuration; the exit status.

    Raises:
        FileNotFoundError, DatasetError, RunConflict, RunBusy: before the training started.
        ServiceError: a service did not start.
    """
    model_directory(settings.model)
    model_directory(settings.critic_model, key="critic.path")
    check_datasets(settings)
    store = open_run(config, overrides)[1]
    directory = store.directory
    started = time.monotonic()

    def abandon(died: ServiceDied) -> NoReturn:
        """End at once. At an ordinary exit Prefect waits minutes for a dead server to take what is left."""
        _say(str(died), console)
        console.file.flush()
        os._exit(FAILED)

    try:
        with ExitStack() as stack:
            stack.enter_context(owned(store))
            with console.status("starting the Prefect server and Ray"):
                api_url = stack.enter_context(services.available(directory / "services", abandon))
            ui_url = api_url.removesuffix("/api")
            console.print(f"run {directory} · Prefect UI {ui_url}", highlight=False, soft_wrap=True)
            _train(config, overrides, directory, console)
    except KeyboardInterrupt:
        console.print("interrupted: the same command goes on from here", highlight=False)
        return INTERRUPTED
    except ServiceDied as died:
        _close_tracker(store)
        abandon(died)
    except TrainingFailed as failed:
        _explain(failed.__cause__ or failed, directory, console)
        return FAILED
    console.print(last_line(directory, time.monotonic() - started), highlight=False, soft_wrap=True)
    return 0


def _train(config: str, overrides: list[str], directory: Path, console: Console) -> None:
    """Run the flow under the live table.

    Raises:
        TrainingFailed: from what the flow failed with.
    """
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogHandler

    from flows.progress import shown
    from flows.train import train

    _log_to_file(_log_path(directory))
    with shown(directory, console):
        try:
            asyncio.run(train(config, overrides))
        except Exception as error:
            logging.getLogger("rlvr").exception("the training failed")
            raise TrainingFailed from error
        finally:
            # What is still on its way to the server has to arrive before the server is stopped.
            EventsWorker.drain_all(timeout=DRAIN_SECONDS)
            APILogHandler().flush()


def _explain(error: BaseException, directory: Path, console: Console) -> None:
    where = "".join(f" ({note})" for note in getattr(error, "__notes__", []))
    _say(f"{type(error).__name__}{where}: {error}", console)
    console.print(
        f"The traceback is in {_log_path(directory)}. The same command goes on at the failed stage.",
        highlight=False,
        soft_wrap=True,
    )


def _say(error: str, console: Console) -> None:
    console.print("[bold red]error:[/]", end=" ")
    console.print(error, highlight=False, markup=False, soft_wrap=True)


def _close_tracker(store: RunStore) -> None:
    from flows.publish import tracker

    if tracker.cache_info().currsize:
        tracker(store.url).close()


def last_line(directory: Path, seconds: float) -> str:
    """`held-out accuracy 0.50 → 0.79 · 30 iterations · 412 s · report runs/…/report.html`"""
    from rlcore.tracking.history import read_metrics

    rows = read_metrics(directory)
    accuracies = [row["eval/accuracy"] for row in rows if "eval/accuracy" in row]
    learned = f"held-out accuracy {accuracies[0]:.2f} → {accuracies[-1]:.2f} · " if accuracies else ""
    report = directory / "report.html"
    shown_path = report.relative_to(Path.cwd()) if report.is_relative_to(Path.cwd()) else report
    return f"{learned}{max(row['iteration'] for row in rows):.0f} iterations · {seconds:.0f} s · report {shown_path}"


def _log_path(directory: Path) -> Path:
    return directory / "logs" / "train.log"


def _log_to_file(path: Path) -> None:
    """Log lines go to a file instead of through the live table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().handlers = [handler]
