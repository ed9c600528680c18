"""The command `rlvr`.

Prefect and Ray read their settings when they are imported, so what needs them is imported inside a
command, after its services are known.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import polars as pl
import typer
from rich.console import Console

from flows import services
from flows.runs import RunConflict, settings_of
from rlcore.compose import dump
from rlcore.config_errors import ConfigError
from rlcore.data.datasets import DatasetError
from rlcore.export import ExportRefused, export_model
from rlcore.lineage import ForkRefused, read_fork
from rlcore.ownership import RunBusy, owned
from rlcore.plan import plan_iteration
from rlcore.store import RunStore, StoreError
from rlcore.trainer.checkpoint import CheckpointDamaged

app = typer.Typer(
    help="Reinforcement learning with verifiable rewards.", no_args_is_help=True, pretty_exceptions_enable=False
)
console = Console()

USER_ERRORS = (
    CheckpointDamaged,
    ConfigError,
    DatasetError,
    ExportRefused,
    FileNotFoundError,
    ForkRefused,
    RunBusy,
    RunConflict,
    StoreError,
    services.ServiceError,
)

DEFAULT_PORT = 4200
"""Of the Prefect server; prefect.toml names it too."""

ConfigName = Annotated[
    str, typer.Argument(help="A configuration in configs/, such as arithmetic, or a run's own config.yaml.")
]
Overrides = Annotated[list[str] | None, typer.Argument(help="key=value, such as iterations=50 or algorithm=grpo_kl.")]
RunName = Annotated[str, typer.Argument(help="A run: its name under runs/, or its directory.")]


@app.command()
def train(
    config: ConfigName,
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run, and start nothing.")] = False,
) -> None:
    """Train, or go on with a training. Uses the services of `rlvr up`, or its own for as long as it runs."""
    settings = settings_of(config, overrides or [])
    if dry_run:
        print(dump(settings))
        print(plan_iteration(settings, settings.iterations).drawing())
        return
    from flows.training import train_here

    sys.exit(train_here(settings, config, overrides or [], console))


@app.command()
def up(
    port: Annotated[int, typer.Option(help="Port of the Prefect server and its UI.")] = DEFAULT_PORT,
    ray_port: Annotated[int, typer.Option(help="Port of the Ray head.")] = 6379,
) -> None:
    """Start Prefect server, Ray head and worker on loopback, kept alive, with the deployments of prefect.yaml."""
    running = services.recorded()
    if running is None:
        before = services.read_record()
        for name, story in (before.given_up if before else {}).items():
            console.print(f"{name} {story}", highlight=False, markup=False, soft_wrap=True)
        with console.status("starting Prefect server, Ray and worker"):
            running = services.start(port, ray_port)
    console.print(f"Prefect UI  {running.ui_url}\nRay         {services.HOST}:{running.ray_port}", highlight=False)
    for service in running.processes:
        console.print(f"{service.name:<15} pid {service.pid}  log {service.log}", highlight=False, soft_wrap=True)
    here = "" if running.prefect_port == DEFAULT_PORT else f"PREFECT_API_URL={running.api_url} "
    console.print(f"next: {here}prefect deployment run rlvr/iterate", highlight=False, soft_wrap=True)


@app.command()
def down() -> None:
    """Stop what `rlvr up` started, with every engine on it."""
    stopped = services.stop_recorded()
    console.print(f"stopped {', '.join(stopped)}" if stopped else "nothing was running")


@app.command()
def show(
    run: RunName,
    iteration: Annotated[int, typer.Argument(help="The first is 1; 0 is the evaluation before training.")],
    stage: Annotated[str, typer.Argument(help="A stage, such as generate or advantage.")],
    sample: Annotated[str | None, typer.Option(help="Only this sample (or prompt), every column in full.")] = None,
) -> None:
    """Print any stage's batch of any iteration."""
    from rlcore.tracking.show import show_output

    show_output(open_store(run), iteration, stage, sample, console)


@app.command()
def watch(run: RunName) -> None:
    """The live table of a run that another process trains. Ctrl-C ends the watching, not the run."""
    from flows.progress import follow

    follow(open_store(run).directory, console)


@app.command()
def report(run: RunName) -> None:
    """Write report.html of a run anew, and name it."""
    from rlcore.tracking.report import write_report

    print(write_report(open_store(run).directory))


@app.command(name="export")
def export_command(
    run: RunName,
    iteration: Annotated[
        list[int] | None, typer.Argument(metavar="ITERATION", help="One with a checkpoint. Default: the newest.")
    ] = None,
    *,
    directory: Annotated[Path, typer.Argument(help="Where the model goes: a directory that is new or empty.")],
) -> None:
    """Write a checkpoint's model as a Hugging Face directory: weights, tokenizer with chat template, model card."""
    if iteration and len(iteration) > 1:
        raise typer.BadParameter(f"one ITERATION, not {len(iteration)}: rlvr export RUN [ITERATION] DIR")
    number = export_model(open_store(run), iteration[0] if iteration else None, directory)
    console.print(f"{directory}: the model after iteration {number}", highlight=False, soft_wrap=True)


@app.command()
def verify(run: RunName) -> None:
    """Check every digest, schema, ledger line and checkpoint of a run; says what is wrong, and changes nothing."""
    from rlcore.verification.run import verify_run

    verification = verify_run(open_store(run), console)
    verification.print(console)
    sys.exit(1 if verification.wrong else 0)


@app.command()
def replay(
    run: RunName,
    first: Annotated[int, typer.Option("--from", min=1, help="The first update to compare.")],
    last: Annotated[int, typer.Option("--to", help="The last one.")],
) -> None:
    """Compute updates again from their recorded batches, and compare weights and metrics; changes nothing."""
    if last < first:
        raise typer.BadParameter(f"--from {first} comes after --to {last}")
    from flows.replaying import replay_here

    sys.exit(replay_here(open_store(run), first, last, console))


@app.command()
def prune(
    run: RunName,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
) -> None:
    """Delete what is not needed to go on with a run, after saying how much that is."""
    from rlcore.pruning import megabytes, plan_pruning
    from rlcore.pruning import prune as delete

    store = open_store(run)
    with owned(store):
        with console.status("reading the newest checkpoint"):
            plan = plan_pruning(store)
        if not plan.sizes:
            console.print(f"{store.url}: nothing to delete", highlight=False, soft_wrap=True)
            return
        for line in plan.lines():
            console.print(line, highlight=False, soft_wrap=True)
        if yes or typer.confirm(f"delete {megabytes(plan.bytes)}?"):
            delete(store, plan)
            console.print(f"deleted {megabytes(plan.bytes)}", highlight=False)


@app.command()
def fork(
    run: RunName,
    overrides: Overrides = None,
    *,
    iteration: Annotated[int, typer.Option("--from", help="An iteration with a checkpoint.")],
    name: Annotated[str | None, typer.Option("--run", help="Of the new run. Default: RUN-from-ITERATION.")] = None,
) -> None:
    """Start a new run from an iteration of another, under other settings. Nothing of the other is changed."""
    from rlcore.forking import fork_run

    origin = open_store(run)
    with console.status("copying the checkpoint and the batches"):
        made = fork_run(origin, iteration, overrides or [], name)
    record = read_fork(made)
    assert record is not None
    changed = [f"{field}: {before!r} → {now!r}" for field, (before, now) in record.changed.items()]
    console.print(f"{made.url}: {origin.url} up to iteration {iteration}", highlight=False, soft_wrap=True)
    for line in changed:
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    console.print(f"next: rlvr train {made.url}/config.yaml", highlight=False, soft_wrap=True)


@app.command()
def algorithms() -> None:
    """Policy losses, advantages and presets, with their options and sources."""
    from rlcore.catalogue import print_catalogue

    print_catalogue(console)


@app.command()
def rewards() -> None:
    """The graders, with their options."""
    from rlcore.rewards.listing import print_graders

    print_graders(console)


@app.command()
def grade(
    domain: Annotated[str, typer.Argument(help="A domain of the configuration; without one, a grader.")],
    file: Annotated[Path, typer.Option(help="JSONL of {response, ground_truth}, each perhaps with an id.")],
    config: Annotated[str | None, typer.Option(help="As for train; overrides come last.")] = None,
    overrides: Overrides = None,
) -> None:
    """Grade the responses in a file as a training would: a line of JSON for each, then how it went in all."""
    from rlcore.rewards.offline import grade_offline, read_responses, reward_config

    reward, processes = reward_config(domain, config, overrides or [])
    graded = grade_offline(domain, reward, read_responses(file), processes)
    for row in graded.iter_rows(named=True):
        print(json.dumps(row))
    counts = ", ".join(f"{count} {status}" for status, count in sorted(Counter(graded["reward_status"]).items()))
    mean_reward = graded.select(pl.format("{}", pl.col("reward").mean().round(3)).fill_null("–")).item()
    console_of_errors = Console(stderr=True)
    console_of_errors.print(
        f"{len(graded)} responses: {counts or 'none'}; mean reward {mean_reward}",
        highlight=False,
    )


@app.command()
def doctor() -> None:
    """What this machine has, and what will be used."""
    from flows.doctor import findings

    for name, finding in findings().items():
        console.print(f"{name:<10} {finding}", highlight=False, soft_wrap=True)


def open_store(run: str) -> RunStore:
    """
    Raises:
        StoreError: no run is there; names those that are.
    """
    candidates = [run] if "://" in run or os.sep in run else [f"runs/{run}", run]
    for candidate in candidates:
        store = RunStore(candidate)
        if store.exists("config.yaml"):
            return store
    there = ", ".join(sorted(path.parent.name for path in Path("runs").glob("*/config.yaml"))) or "none"
    raise StoreError(f"no run at {' or '.join(candidates)} (no config.yaml); runs here: {there}")


def main() -> None:
    """The console script. An error that the user can mend is one message, not a traceback."""
    try:
        app()
    except USER_ERRORS as error:
        console.print("[bold red]error:[/]", end=" ")
        console.print(str(error), highlight=False, soft_wrap=True, markup=False)
        sys.exit(1)
