"""A whole run directory, verified."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from rich.console import Console
from rich.progress import track

from rlcore.compose import load
from rlcore.config import Config
from rlcore.config_errors import ConfigError
from rlcore.leftovers import leftovers, size_of
from rlcore.plan import plan_iteration
from rlcore.retention import PRUNED_FILE, Pruning
from rlcore.store import RUN_ID_FILE, RunStore
from rlcore.tracking.history import METRICS_FILE
from rlcore.verification.checkpoints import damages
from rlcore.verification.findings import RESTORE, Finding, Verification, read_lines
from rlcore.verification.ledger import Line, contradictions, foreign_inputs, gaps, read_ledger
from rlcore.verification.outputs import fault


def verify_run(store: RunStore, console: Console) -> Verification:
    """Check every ledger line, output, checkpoint and row of metrics of a run; shows progress, and changes nothing.

    Raises:
        StoreError: the run is not on a file system.
    """
    result = Verification()
    config = _verify_configuration(store, result)
    lines, result.findings[len(result.findings) :] = read_ledger(store)
    result.findings += contradictions(lines)
    logged = _verify_metrics(store, lines, result)
    progress = _progress(lines, logged, config)
    if config is not None:
        result.findings += gaps(lines, config)
    result.findings += foreign_inputs(lines, progress.newest)
    damaged = {path.name: damages(path, console) for path in sorted(store.directory.glob("checkpoints/[!.]*"))}
    good = [int(name) for name, found in damaged.items() if not found]
    result.checkpoints = len(damaged)
    intact = _verify_outputs(store, lines, progress, max(good, default=0), console, result)
    _verify_checkpoints(lines, damaged, good, intact, progress, result)
    _find_unrecorded(store, lines, result)
    return result


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come."""

    newest: int
    """The newest iteration in the ledger."""
    under_way: bool
    """A stage of it, or its row of metrics, is missing: going on with the run starts with it."""
    updates: int
    """Updates in the ledger: the newest version of the policy."""


def _progress(lines: list[Line], logged: Collection[int], config: Config | None) -> Progress:
    newest = max((line.entry.iteration for line in lines), default=0)
    done = {line.entry.stage for line in lines if line.entry.iteration == newest}
    planned = plan_iteration(config, newest).stages if config is not None and newest else ()
    updates = max((line.entry.iteration for line in lines if line.entry.stage == "update"), default=0)
    return Progress(newest, not done.issuperset(planned) or newest not in logged, updates)


def _verify_configuration(store: RunStore, result: Verification) -> Config | None:
    if not store.exists(RUN_ID_FILE):
        advice = f"{RESTORE}: with a new one the run meets none of its warm engines, and W&B shows a new run"
        result.findings.append(Finding("configuration", RUN_ID_FILE, "is missing", advice))
    try:
        return load(store.read_bytes("config.yaml").decode())
    except (ConfigError, ValueError) as error:
        what = f"is no configuration: {' '.join(str(error).split())}"
        result.findings.append(Finding("configuration", "config.yaml", what, RESTORE))
        return None


def _verify_metrics(store: RunStore, lines: list[Line], result: Verification) -> set[int]:
    """The iterations that are in metrics.jsonl."""

    def iteration_of(line: bytes) -> int:
        row = json.loads(line)
        if not isinstance(row, dict) or not isinstance(row.get("iteration"), int):
            raise ValueError("a row is a JSON object with a whole number for iteration")
        return int(row["iteration"])

    rows, findings = read_lines(
        store, METRICS_FILE, "metrics", iteration_of, "delete the line, and run its iteration again: it is logged anew"
    )
    recorded = {line.entry.iteration for line in lines}
    seen: dict[int, int] = {}
    for number, iteration in rows.items():
        where = f"{METRICS_FILE}:{number} (iteration {iteration})"
        if iteration in seen:
            what = f"is there twice: line {seen[iteration]} is of that iteration too"
            findings.append(Finding("metrics", where, what, "delete one of them"))
        elif iteration not in recorded:
            what = "no line of the ledger is of that iteration"
            findings.append(Finding("metrics", where, what, f"delete the line, or {RESTORE} what the ledger lacks"))
        seen[iteration] = number
    newest = max(recorded, default=0)
    for iteration in sorted(recorded - seen.keys()):
        where, what = f"{METRICS_FILE} (iteration {iteration})", "has no row, and its stages are in the ledger"
        if iteration == newest:
            findings.append(Finding("metrics", where, what, "going on with the run writes it", harmless=True))
        else:
            findings.append(Finding("metrics", where, what, _run_again(iteration)))
    result.findings += findings
    return set(seen)


def _verify_outputs(
    store: RunStore, lines: list[Line], progress: Progress, newest_good: int, console: Console, result: Verification
) -> set[tuple[int, str]]:
    """The stages whose outputs are what was recorded."""
    advice = f"{RESTORE}, or delete it: what is missing then counts as lost, not as pruned"
    prunings, findings = read_lines(store, PRUNED_FILE, "ledger", Pruning.model_validate_json, advice)
    result.findings += findings
    pruned = {output for pruning in prunings.values() for output in pruning.outputs.items()}
    of_stage: dict[tuple[int, str], list[Line]] = defaultdict(list)
    for line in lines:
        of_stage[line.entry.iteration, line.entry.stage].append(line)
    faults: list[tuple[Line, str]] = []
    intact = set()
    for key, (*older, line) in track(of_stage.items(), "reading outputs", console=console, transient=True):
        ref = line.entry.output
        if (ref.path, ref.sha256) in pruned and not store.exists(ref.path):
            result.pruned += 1
            continue
        result.outputs += 1
        found = fault(store, line, older)
        if found is None:
            intact.add(key)
        else:
            faults.append((line, found))
    for line, found in faults:
        where = f"{line.entry.output.path} (iteration {line.entry.iteration}, {line.entry.stage})"
        advice = _output_advice(line, progress, newest_good, intact)
        result.findings.append(Finding("outputs", where, found, advice))
    return intact


def _output_advice(line: Line, progress: Progress, newest_good: int, intact: set[tuple[int, str]]) -> str:
    """What a lost output means, and what brings it back."""
    iteration, stage = line.entry.iteration, line.entry.stage
    if progress.under_way and iteration == progress.newest:
        return "go on with the run: it is computed again, with everything after it"
    paths = {ref.path for ref in line.entry.inputs.values()}
    # From the same inputs, these stages put out the same bytes.
    if stage in ("advantage", "statistics") and paths:
        return (
            f"{RESTORE}, or run the iteration again, which computes it from what is there: {_run_again(iteration)}"
            if (iteration, "generate") in intact and (iteration, "reward") in intact
            else _loss(line, progress, newest_good)
        )
    return _loss(line, progress, newest_good)


def _loss(line: Line, progress: Progress, newest_good: int) -> str:
    iteration, stage = line.entry.iteration, line.entry.stage
    if stage == "advantage" and iteration > newest_good:
        return f"{RESTORE}: without it no trainer can be restored past version {iteration - 1}"
    if stage == "statistics" and iteration >= progress.newest - 1:
        return f"{RESTORE}: without it iteration {iteration + 1} cannot be done"
    if stage == "evaluate":
        return f"{RESTORE}: the run goes on without it, and report.html cannot show that evaluation"
    return f"{RESTORE}: the run goes on without it, and `rlvr show` cannot show it"


def _run_again(iteration: int) -> str:
    return f"`prefect deployment run rlvr/iterate --param config=RUN/config.yaml --param iteration={iteration}`"


def _verify_checkpoints(
    lines: list[Line],
    damaged: dict[str, list[str]],
    good: list[int],
    intact: set[tuple[int, str]],
    progress: Progress,
    result: Verification,
) -> None:
    for name, found in damaged.items():
        for what in found:
            where, advice = f"checkpoints/{name}", _checkpoint_advice(int(name), good, intact, progress)
            result.findings.append(Finding("checkpoints", where, what, advice))
    saved = max((line.entry.iteration for line in lines if line.entry.stage == "checkpoint"), default=None)
    if saved is not None and f"{saved:06d}" not in damaged:
        where, what = f"checkpoints/{saved:06d}", "is missing: it is the newest that the ledger has"
        result.findings.append(Finding("checkpoints", where, what, _checkpoint_advice(saved, good, intact, progress)))


def _checkpoint_advice(version: int, good: list[int], intact: set[tuple[int, str]], progress: Progress) -> str:
    """What becomes of a run without this checkpoint."""
    if any(other > version for other in good):
        return "the run does not need it, a newer one is good: delete what is left of it"
    start = max(good, default=0)
    lost = [n for n in range(start + 1, progress.updates + 1) if (n, "advantage") not in intact]
    source = f"checkpoints/{start:06d}" if start else "the model that the run started from"
    if lost:
        return f"{RESTORE}: from {source}, the run cannot be brought back past update {lost[0] - 1}, whose next is lost"
    replayed = progress.updates - start
    return f"delete what is left of it: the run goes on from {source}, with {replayed} recorded updates applied again"


def _find_unrecorded(store: RunStore, lines: list[Line], result: Verification) -> None:
    """What writes left that did not come to their end."""
    remnants = leftovers(store)
    for path in remnants:
        where = str(path.relative_to(store.directory))
        what = f"a write that was interrupted, or is under way, left it ({size_of(path):,} bytes)"
        result.findings.append(Finding("leftovers", where, what, "`rlvr prune` deletes it", harmless=True))
    recorded = {line.entry.output.path for line in lines}
    for path in sorted(set(store.directory.glob("iterations/*/*")) - set(remnants)):
        where = str(path.relative_to(store.directory))
        if where not in recorded:
            what = "no line of the ledger has it: its stage ended before it was recorded"
            result.findings.append(Finding("leftovers", where, what, "going on writes it anew", harmless=True))
