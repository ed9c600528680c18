"""What the memory benchmark calls growth, on readings of known processes."""

from __future__ import annotations

import subprocess
import sys

import polars as pl
import psutil
import pytest

from benchmarks.memory import MB, READINGS, by_iteration, growths, kind_of, look, report, settled_after, slope
from rlcore.store import LedgerEntry
from tests.entries import ledger_entry

ITERATIONS = 40
STAGES = ("sample", "generate", "update", "sync")


def ledger(evaluate: int = 5, checkpoint: int = 10) -> list[LedgerEntry]:
    """Iterations of ten seconds, after an evaluation of the untrained policy."""
    entries = [ledger_entry(0, "evaluate").model_copy(update={"finished_at": 0.0})]
    for number in range(1, ITERATIONS + 1):
        due = [name for name, every in (("evaluate", evaluate), ("checkpoint", checkpoint)) if number % every == 0]
        entries += [
            ledger_entry(number, stage).model_copy(update={"finished_at": 10.0 * number}) for stage in (*STAGES, *due)
        ]
    return entries


def process(pid: int, command: str, megabytes: dict[int, float]) -> pl.DataFrame:
    """Three readings in every iteration that the process has a size in."""
    rows = [(10.0 * n - 8 + 3 * i, pid, command, round(size * MB)) for n, size in megabytes.items() for i in range(3)]
    return pl.DataFrame(rows, schema=READINGS, orient="row")


def growth_of(*processes: pl.DataFrame) -> dict[int, float]:
    """MB an iteration by pid."""
    entries = ledger()
    found = growths(by_iteration(pl.concat(processes), entries), settled_after(entries))
    return {pid: growth / MB for pid, growth in found.select("pid", "growth").iter_rows()}


def steadily(megabytes: float, growth: float = 0.0, since: int = 1) -> dict[int, float]:
    return {n: megabytes + growth * (n - since) for n in range(since, ITERATIONS + 1)}


def test_growth_is_measured_once_every_stage_has_run_beside_the_others() -> None:
    assert settled_after(ledger()) == 10
    assert settled_after(ledger(evaluate=20)) == 20
    # The warm-up, at least.
    assert settled_after(ledger(evaluate=1, checkpoint=2)) == 5


def test_a_leak_of_one_process_is_its_growth_and_a_steady_one_has_none() -> None:
    growth = growth_of(process(1, "rlvr train", steadily(300)), process(2, "ray::GradersProcess", steadily(4000, 3.0)))
    assert growth == {1: pytest.approx(0, abs=1e-6), 2: pytest.approx(3.0, abs=1e-3)}


def test_neither_the_warm_up_nor_peaks_in_some_iterations_are_growth() -> None:
    warming = {n: size + (50 * n if n <= 10 else 500) for n, size in steadily(300).items()}
    peaks = {n: size + (200 if n % 5 == 0 else 0) for n, size in steadily(300).items()}
    growth = growth_of(process(1, "rlvr train", warming), process(2, "VLLM::EngineCore", peaks))
    assert growth == {1: pytest.approx(0, abs=1e-6), 2: pytest.approx(0, abs=1e-6)}


def test_a_process_that_appears_is_named_and_is_no_growth(capsys: pytest.CaptureFixture[str]) -> None:
    first = process(1, "ray::update", steadily(300))
    second = process(2, "ray::checkpoint", {20: 100.0} | steadily(300, since=21))
    entries = ledger()
    report(by_iteration(pl.concat([first, second]), entries), settled_after(entries))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [
        "appeared in iteration 20: stages on Ray, process 2, up to 0.30 GB, last seen in 40",
        "memory peak 0.60 GB (aim < 10 GB), growing by 0.0 MB an iteration (aim ≤ 1 MB) over the last 30",
    ]


def test_a_process_that_appears_and_leaks_grows_all_the_same() -> None:
    assert growth_of(process(7, "ray::update", steadily(300, 2.0, since=20))) == {7: pytest.approx(2.0, abs=1e-3)}


def test_a_run_too_short_to_tell_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    entries = ledger(checkpoint=38)
    report(by_iteration(process(1, "rlvr train", steadily(300, 9.0)), entries), settled_after(entries))
    assert "growth not measured: that takes 5 iterations after iteration 38" in capsys.readouterr().out


def test_a_worker_is_what_it_last_was() -> None:
    idle, busy = process(3, "ray::IDLE", {1: 100.0}), process(3, "ray::GradersProcess.call", {2: 900.0})
    samples = by_iteration(pl.concat([idle, busy]), ledger())
    assert set(samples["kind"]) == {"grader actor"}
    assert samples["iteration"].to_list() == [1, 1, 1, 2, 2, 2]


def test_what_is_read_after_the_last_iteration_belongs_to_it() -> None:
    assert (
        by_iteration(
            process(1, "rlvr train", {ITERATIONS + 2: 300.0}).vstack(process(1, "rlvr train", {ITERATIONS: 300.0})),
            ledger(),
        )["iteration"].to_list()
        == [ITERATIONS] * 6
    )


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("VLLM::EngineCore", "vLLM engine core"),
        ("ray::EngineProcess.call", "vLLM actor"),
        ("ray::RankProcess.call", "trainer"),
        ("ray::GradersProcess.call", "grader actor"),
        ("ray::update", "stages on Ray"),
        ("ray::DashboardAgent", "Ray"),
        ("python -m prefect server start", "Prefect server"),
        ("g++ -O2", "other"),
    ],
)
def test_processes_are_told_by_their_command_line(command: str, kind: str) -> None:
    assert kind_of(command) == kind


def test_a_look_finds_a_process_and_what_it_started() -> None:
    inner = "import time; block = b'x' * 30_000_000; print('ready', flush=True); time.sleep(60)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    parent = subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None and parent.stdout.readline() == "ready\n"
    try:
        rows = look(psutil.Process(parent.pid))
    finally:
        for child in psutil.Process(parent.pid).children():
            child.kill()
        parent.wait()
    assert rows[0][1] == parent.pid
    assert len(rows) == 2
    assert rows[1][3] > 30e6


def test_the_slope_is_that_of_most_pairs() -> None:
    assert slope([1, 2, 3, 4, 5, 6], [1.0, 3.0, 5.0, 7.0, 9.0, 100.0]) == 2.0
