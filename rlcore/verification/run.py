"""A whole run directory, verified."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain

from rich.console import Console
from rich.progress import track

from rlcore.compose import load
from rlcore.config import Config
from rlcore.leftovers import leftovers, size_of
from rlcore.retention import PRUNED_FILE, Pruning
from rlcore.store import RUN_ID_FILE, RunStore
from rlcore.verification import rollouts
from rlcore.verification.checkpoints import damages
from rlcore.verification.findings import RESTORE, Finding, Verification, read_lines
from rlcore.verification.fork import verify_fork
from rlcore.verification.ledger import Line, contradictions, foreign_inputs, gaps, read_ledger
from rlcore.verification.metrics import mismatches, read_rows
from rlcore.verification.outputs import fault
from rlcore.verification.progress import Outputs, Progress, progress_of


def verify_run(store: RunStore, console: Console) -> Verification:
    """Check every ledger line, output, checkpoint and row of metrics of a run; changes nothing.

    Args:
        console: where it is shown, while files are read, how many have been.

    Raises:
        StoreError: the run is not on a file system.
    """
    result = Verification()
    config = _verify_configuration(store, result)
    fork, not_as_forked = verify_fork(store)
    inherited = fork.iteration if fork else 0
    lines, unreadable = read_ledger(store)
    rows, not_rows = read_rows(store)
    result.findings += [*not_as_forked, *unreadable, *contradictions(lines)]
    result.findings += gaps(lines, config, inherited) if config else []
    result.findings += [*not_rows, *mismatches(rows, {line.entry.iteration for line in lines})]

    checkpoints = {
        int(path.name): damages(path, console) for path in sorted(store.directory.glob("checkpoints/" + "[0-9]" * 6))
    }
    result.checkpoints = len(checkpoints)
    good = [version for version, damaged in checkpoints.items() if not damaged]
    progress = progress_of(lines, set(rows.values()), config, good, inherited)
    result.findings += foreign_inputs(lines, progress.newest if progress.under_way else None)
    prunings = _read_prunings(store, result)
    intact = _verify_outputs(store, lines, prunings, progress, console, result)
    _verify_checkpoints(lines, checkpoints, prunings, progress, intact, result)
    result.findings += rollouts.unreadable(store)
    _find_remnants(store, lines, result)
    return result


def _verify_configuration(store: RunStore, result: Verification) -> Config | None:
    if not store.exists(RUN_ID_FILE):
        advice = f"{RESTORE}: without it the run finds none of its warm engines, and W&B takes it for another"
        result.findings.append(Finding("configuration", RUN_ID_FILE, "is missing", advice))
    try:
        return load(store.read_bytes("config.yaml").decode())
    except ValueError as error:
        what = f"is no configuration: {' '.join(str(error).split())}"
        result.findings.append(Finding("configuration", "config.yaml", what, RESTORE))
        return None


def _read_prunings(store: RunStore, result: Verification) -> list[Pruning]:
    advice = f"{RESTORE}; if it is deleted, what that pruning deleted counts as missing"
    prunings, findings = read_lines(store, PRUNED_FILE, "ledger", Pruning.model_validate_json, advice)
    result.findings += findings
    return list(prunings.values())


def _verify_outputs(
    store: RunStore,
    lines: list[Line],
    prunings: list[Pruning],
    progress: Progress,
    console: Console,
    result: Verification,
) -> Outputs:
    """Which stages have the outputs that were recorded."""
    pruned = set(chain.from_iterable(pruning.outputs.items() for pruning in prunings))
    of_stage: dict[tuple[int, str], list[Line]] = defaultdict(list)
    for line in lines:
        of_stage[line.entry.iteration, line.entry.stage].append(line)

    faults, intact = [], set()
    shown = track(of_stage.items(), "reading outputs", console=console, transient=True, disable=not console.is_terminal)
    for stage, (*older, line) in shown:
        ref = line.entry.output
        if (ref.path, ref.sha256) in pruned and not store.exists(ref.path):
            result.pruned += 1
            continue
        result.outputs += 1
        if (what := fault(store, line, older)) is None:
            intact.add(stage)
        else:
            faults.append((f"{ref.path} (iteration {stage[0]}, {stage[1]})", what, stage))
    result.findings += [
        Finding("outputs", where, what, progress.advice_on_output(*stage, intact)) for where, what, stage in faults
    ]
    return intact


def _verify_checkpoints(
    lines: list[Line],
    checkpoints: dict[int, list[str]],
    prunings: list[Pruning],
    progress: Progress,
    intact: Outputs,
    result: Verification,
) -> None:
    newest = max((line.entry.iteration for line in lines if line.entry.stage == "checkpoint"), default=None)
    pruned = chain.from_iterable(pruning.checkpoints for pruning in prunings)
    # Older ones are deleted while a run goes on.
    if newest is not None and newest not in (*checkpoints, *pruned):
        checkpoints = {**checkpoints, newest: ["is missing, and is the newest that the ledger has"]}
    result.findings += [
        Finding("checkpoints", f"checkpoints/{version:06d}", what, progress.advice_on_checkpoint(version, intact))
        for version, damaged in checkpoints.items()
        for what in damaged
    ]


def _find_remnants(store: RunStore, lines: list[Line], result: Verification) -> None:
    """What writes left that did not come to their end."""
    unpublished = leftovers(store)
    for path in unpublished:
        what = f"a write that was interrupted, or is under way, left {size_of(path):,} bytes"
        where = str(path.relative_to(store.directory))
        result.findings.append(Finding("leftovers", where, what, "`rlvr prune` deletes them", harmless=True))
    recorded = {line.entry.output.path for line in lines}
    for path in sorted(set(store.directory.glob("iterations/*/*")) - set(unpublished)):
        if path.name not in rollouts.FILES and (where := str(path.relative_to(store.directory))) not in recorded:
            what = "no line of the ledger has it: its stage ended before it was recorded"
            result.findings.append(Finding("leftovers", where, what, "going on writes it anew", harmless=True))
