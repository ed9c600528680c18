from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from rlcore.progress import Progress, Step, progress_file
from rlcore.tracking.history import read_history, read_metrics
from rlcore.tracking.table import format_seconds, render, row_line
from tests.tracking.conftest import MadeUpRun


def drawn(run: MadeUpRun, width: int, now: float | None = None) -> list[str]:
    output = io.StringIO()
    Console(file=output, width=width, force_terminal=False).print(render(run.directory, now))
    return output.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 100, 140])
def test_fits_and_shows_every_number_of_its_columns_whole(made_up_run: MadeUpRun, width: int) -> None:
    lines = drawn(made_up_run, width)
    assert all(len(line.rstrip()) <= width for line in lines)
    assert not any("…" in line for line in lines)
    row = next(row for row in read_metrics(made_up_run.directory) if row["iteration"] == 5)
    line = next(line.split() for line in lines if line.startswith("   5"))
    always = [f"{row[f'reward/{domain}']:.2f}" for domain in ("arithmetic", "reasoning_gym", "format")]
    always += [f"{row['eval/accuracy']:.2f}", f"{row['response/length_mean']:.1f}", f"{row['train/approx_kl_k3']:.4f}"]
    assert line[:7] == ["5", *always]
    assert f"{row['seconds/generate']:.1f}" in line and f"{row['seconds/update']:.1f}" in line


def test_a_hundred_columns_hold_everything(made_up_run: MadeUpRun) -> None:
    text = "\n".join(drawn(made_up_run, 100))
    for header in (
        "arithmetic",
        "held-out",
        "length",
        "KL",
        "clip",
        "entropy",
        "grad",
        "gen",
        "update",
        "other",
        "stale",
    ):
        assert re.search(rf"\b{header}\b", text), header
    row = next(row for row in read_metrics(made_up_run.directory) if row["iteration"] == 8)
    shown = row["seconds/generate"] + row["seconds/update"]
    other = sum(value for key, value in row.items() if key.startswith("seconds/")) - shown
    newest = next(line.split() for line in drawn(made_up_run, 100) if line.startswith("   8"))
    assert newest[-2:] == [f"{other:.1f}", "0.0"]


def test_a_narrow_terminal_keeps_reward_and_held_out_accuracy(made_up_run: MadeUpRun) -> None:
    lines = drawn(made_up_run, 50)
    assert all(len(line.rstrip()) <= 50 for line in lines)
    assert "held-out" in "\n".join(lines) and "stale" not in "\n".join(lines)


def test_only_the_newest_iterations_are_shown(made_up_run: MadeUpRun) -> None:
    for iteration in range(20, 40):
        made_up_run.store.append_line("metrics.jsonl", f'{{"iteration": {iteration}, "reward/format": 0.5}}')
    numbers = [line.split()[0] for line in drawn(made_up_run, 100) if re.match(r" +\d", line)]
    assert numbers == [str(number) for number in range(25, 40)]


def test_title_counts_time_and_estimates_what_is_left(made_up_run: MadeUpRun) -> None:
    history = read_history(made_up_run.directory)
    spans = [sum(e.seconds for e in history.ledger if e.iteration == number) for number in range(1, 9)]
    left = sum(spans) / 8 * 4
    assert drawn(made_up_run, 100)[0] == (
        f"made-up · iteration 8 of 12 · {format_seconds(sum(e.seconds for e in history.ledger))}"
        f" · about {format_seconds(left)} left"
    )


def test_the_stage_now_running_is_named_with_its_seconds(made_up_run: MadeUpRun) -> None:
    last = drawn(made_up_run, 100, now=made_up_run.now + 4.2)[-1]
    assert re.fullmatch(r"iteration 9: sample \S+s · generate \S+s · reward \S+s · advantage \S+s · update 4\.2s", last)


def test_the_stage_now_running_shows_how_far_it_is(made_up_run: MadeUpRun) -> None:
    steps = [
        Step(name="update"),
        Step(name="optimizer steps", done=1, total=4),
        Step(name="micro-batches", done=3, total=8),
    ]
    progress = Progress.here().model_copy(update={"steps": steps})
    file = progress_file(made_up_run.directory, "trainer-0")
    file.parent.mkdir()
    file.write_text(progress.model_dump_json())
    text = " ".join(" ".join(drawn(made_up_run, 100, now=made_up_run.now + 4.2)).split())
    assert text.endswith("update 1/4 optimizer steps, 3/8 micro-batches 4.2s")


def test_stages_that_wait_for_the_same_input_run_together(made_up_run: MadeUpRun) -> None:
    made_up_run.write_stages(9)
    made_up_run.write_stages(10, until="evaluate")
    last = drawn(made_up_run, 100, now=made_up_run.now + 1.0)[-1]
    assert last.endswith("evaluate 1.0s, checkpoint 1.0s")


def test_between_iterations_the_next_one_has_begun(made_up_run: MadeUpRun) -> None:
    made_up_run.write_stages(9)
    assert drawn(made_up_run, 100, now=made_up_run.now + 0.5)[-1] == "iteration 10: sample 0.5s"


def test_a_complete_run_is_finished(made_up_run: MadeUpRun) -> None:
    for iteration in (9, 10, 11, 12):
        made_up_run.write_stages(iteration)
    lines = drawn(made_up_run, 100)
    assert lines[-1] == "finished" and "left" not in lines[0]


def test_before_the_first_stage_it_starts(made_up_run: MadeUpRun) -> None:
    for name in ("ledger.jsonl", "metrics.jsonl"):
        (made_up_run.directory / name).unlink()
    assert drawn(made_up_run, 100) == ["made-up · iteration 0 of 12 · 0 s", "starting"]


def test_responses_without_a_reward_are_pointed_out(made_up_run: MadeUpRun) -> None:
    row = {"iteration": 9, "reward/status/scored": 20, "reward/status/timeout": 3, "reward/status/grader_error": 1}
    made_up_run.store.append_line("metrics.jsonl", str(row).replace("'", '"'))
    assert "iteration 9: responses without a reward: 3 timeout, 1 grader_error" in drawn(made_up_run, 100)


def test_skipped_optimizer_steps_are_pointed_out(made_up_run: MadeUpRun) -> None:
    for iteration, row in (
        (9, '"train/skipped_steps": 1, "critic/skipped_steps": 1'),
        (10, '"train/skipped_steps": 0'),
    ):
        made_up_run.store.append_line("metrics.jsonl", f'{{"iteration": {iteration}, {row}}}')
    assert "optimizer steps skipped, their gradients not finite: 2 in iteration 9" in drawn(made_up_run, 100)


def test_a_row_as_one_line_for_logs(made_up_run: MadeUpRun) -> None:
    untrained, first, *_ = read_metrics(made_up_run.directory)
    assert row_line(untrained) == f"iter 0 · held-out {untrained['eval/accuracy']:.2f}"
    line = row_line(first)
    assert line.startswith("iter 1 · reward arithmetic") and f"grad norm {first['train/grad_norm']:.2f}" in line
    assert "\n" not in line


def test_a_directory_without_a_run_is_refused(made_up_run: MadeUpRun) -> None:
    with pytest.raises(FileNotFoundError, match=r"not a run directory: it has no config\.yaml"):
        render(made_up_run.directory.parent)


@pytest.mark.parametrize(
    ("seconds", "text"), [(44.6, "45 s"), (60, "1 min 00 s"), (190, "3 min 10 s"), (3900, "1 h 05 min")]
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
