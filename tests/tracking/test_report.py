from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import polars as pl

from rlcore.batches import EvalBatch
from rlcore.tracking.history import read_metrics
from rlcore.tracking.report import MOST_RESPONSES, learning_curve_svg, write_report
from tests.tracking.conftest import EVIL, MadeUpRun

SVG = "{http://www.w3.org/2000/svg}"


class Page(HTMLParser):
    """Tags, attributes and text of a page, and whether every element is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "line", "rect", "polyline", "polygon", "circle"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()
        self.text += " "

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(run: MadeUpRun) -> Page:
    path = write_report(run.directory)
    assert path == run.directory / "report.html"
    return Page(path.read_text())


def test_headline_is_the_first_and_the_last_held_out_accuracy(made_up_run: MadeUpRun) -> None:
    rows = [row for row in read_metrics(made_up_run.directory) if "eval/accuracy" in row]
    text = " ".join(page_of(made_up_run).text.split())
    assert f"{rows[0]['eval/accuracy']:.2f} → {rows[-1]['eval/accuracy']:.2f}" in text
    assert f"{rows[-1]['eval/low']:.2f}–{rows[-1]['eval/high']:.2f}" in text
    assert "iterations 8 of 12" in text and "model SmolLM2-135M-Instruct" in text


def test_lists_answers_before_and_after_by_outcome(made_up_run: MadeUpRun) -> None:
    before, after = (
        pl.read_parquet(made_up_run.directory / f"iterations/{number:06d}/evaluation.parquet") for number in (0, 5)
    )
    both = before.join(after, on="prompt_id", suffix="_after")
    better = both.filter(pl.col("reward") == 0, pl.col("reward_after") == 1)
    assert len(better) > 0
    page = page_of(made_up_run)
    assert f"wrong, then right: {len(better)} prompts" in page.text
    assert "not graded at least once: 1 prompt" in page.text
    first = better.row(0, named=True)
    for said in (first["prompt_text"], first["response_text"], first["response_text_after"], first["ground_truth"]):
        assert said in page.text
    assert "✗ wrong" in page.text and "✓ right" in page.text


def test_what_a_model_wrote_is_escaped(made_up_run: MadeUpRun) -> None:
    page = page_of(made_up_run)
    assert EVIL in page.text
    assert "script" not in page.tags


def test_needs_nothing_from_elsewhere(made_up_run: MadeUpRun) -> None:
    page = page_of(made_up_run)
    assert page.links == []
    html = (made_up_run.directory / "report.html").read_text()
    assert not re.search(r"url\(|@import|http(?!://www\.w3\.org/2000/svg)", html)


def test_has_a_curve_for_each_metric_the_timings_and_the_configuration(made_up_run: MadeUpRun) -> None:
    page = page_of(made_up_run)
    assert page.tags.count("svg") == 8
    for title in ("Entropy", "Gradient norm", "Response length", "KL to the policy", "domain_interleave_probs"):
        assert title in page.text
    stages = {"sample", "generate", "reward", "advantage", "update", "sync", "evaluate"}
    assert stages <= set(re.findall(r"(\w+) \d+\.\d s", page.text))


def test_many_answers_are_cut_and_said_to_be(made_up_run: MadeUpRun) -> None:
    store = made_up_run.store
    copies = (made_up_run.evaluation(0.0).with_columns(pl.col("prompt_id") + f"-{copy}") for copy in range(2))
    wrong = pl.concat(copies).with_columns(reward=0.0, reward_status=pl.lit("scored"))
    for iteration in (0, 10):
        ref = store.write_batch(iteration, "evaluation", wrong, EvalBatch)
        store.record(store.ledger()[0].model_copy(update={"iteration": iteration, "output": ref}))
    assert f"wrong both times: 120 prompts, the first {MOST_RESPONSES} shown" in page_of(made_up_run).text


def test_a_run_with_one_evaluation_or_none_has_a_report(made_up_run: MadeUpRun) -> None:
    ledger = made_up_run.directory / "ledger.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    ledger.write_text(lines[0])
    one = page_of(made_up_run)
    assert "→" not in one.text and "held-out accuracy" in one.text
    ledger.unlink()
    (made_up_run.directory / "metrics.jsonl").unlink()
    assert "No iteration is finished yet." in page_of(made_up_run).text


def test_the_learning_curve_stands_alone_as_svg() -> None:
    rows = [
        {"iteration": 0, "eval/accuracy": 0.5, "eval/low": 0.4, "eval/high": 0.6},
        {"iteration": 1, "reward/mean": 0.25},
        {"iteration": 2, "reward/mean": 0.5, "eval/accuracy": 0.75, "eval/low": 0.65, "eval/high": 0.85},
    ]
    root = ElementTree.fromstring(learning_curve_svg(rows))
    assert len(root.findall(f"{SVG}polyline")) == 2 and len(root.findall(f"{SVG}polygon")) == 1
    places = [tuple(map(float, pair.split(","))) for pair in root.findall(f"{SVG}polyline")[0].attrib["points"].split()]
    assert places[0][0] < places[1][0] and places[0][1] > places[1][1]  # SVG's y points down
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert "held-out accuracy, 95 % interval, iteration 2: 0.75 (0.65 to 0.85)" in titles


def test_without_points_there_is_no_curve() -> None:
    assert learning_curve_svg([]) == ""
    assert learning_curve_svg([{"iteration": 1, "train/entropy": 1.0}]) == ""
