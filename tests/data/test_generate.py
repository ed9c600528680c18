import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from transformers import AutoTokenizer

from rlcore.data.datasets import load_prompts, tokenize_prompts
from rlcore.data.generate import write_all
from rlcore.pretrained import smollm2_directory
from rlcore.rewards import format, math, reasoning_gym

SHIPPED = Path(__file__).parents[2] / "configs" / "data"
NAMES = ("arithmetic", "format", "reasoning_gym")


def load(name: str, part: str) -> pl.DataFrame:
    return load_prompts([str(SHIPPED / f"{name}.{part}.jsonl")], {name})


def questions(prompts: pl.DataFrame) -> list[str]:
    return [messages[0]["content"] for messages in prompts["messages"].to_list()]


def test_generating_again_gives_the_shipped_files_byte_for_byte(tmp_path: Path) -> None:
    write_all(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted(f"{name}.{part}.jsonl" for name in NAMES for part in ("train", "held_out"))
    for name in names:
        assert (tmp_path / name).read_bytes() == (SHIPPED / name).read_bytes(), name


@pytest.mark.parametrize("name", NAMES)
def test_no_prompt_occurs_twice_and_none_is_both_trained_on_and_held_out(name: str) -> None:
    everything = questions(load(name, "train")) + questions(load(name, "held_out"))
    assert len(set(everything)) == len(everything)


def test_no_arithmetic_problem_is_both_trained_on_and_held_out() -> None:
    def problems(part: str) -> set[tuple[Any, ...]]:
        prompts = load("arithmetic", part)
        numbers = [sorted(map(int, re.findall(r"\d+", question))) for question in questions(prompts)]
        return {
            (tag, *operands, result)
            for tag, operands, result in zip(prompts["tag"], numbers, prompts["ground_truth"], strict=True)
        }

    assert not problems("train") & problems("held_out")


@pytest.mark.parametrize("name", ["format", "reasoning_gym"])
def test_no_other_problem_in_other_words_is_both_trained_on_and_held_out(name: str) -> None:
    def problems(part: str) -> set[tuple[str, ...]]:
        return {tuple(sorted(re.findall(r"\w+", question))) for question in questions(load(name, part))}

    assert not problems("train") & problems("held_out")


def test_arithmetic_is_mixed_about_evenly() -> None:
    train, held_out = (Counter(load("arithmetic", part)["tag"]) for part in ("train", "held_out"))
    assert set(train) == set(held_out) == {"sum", "product", "word"}
    assert train.total() >= 400
    assert 128 <= held_out.total() <= 200
    assert min(held_out.values()) > 0.8 * max(held_out.values())


def test_arithmetic_ground_truths_are_right() -> None:
    for part in ("train", "held_out"):
        prompts = load("arithmetic", part)
        for tag, question, truth in zip(prompts["tag"], questions(prompts), prompts["ground_truth"], strict=True):
            a, b = map(int, re.findall(r"\d+", question))
            lost = tag == "word" and "lost" in question
            assert int(truth) == (a * b if tag == "product" else a - b if lost else a + b), question


@pytest.mark.parametrize("part", ["train", "held_out"])
def test_graders_read_every_shipped_ground_truth(part: str) -> None:
    for truth in load("arithmetic", part)["ground_truth"]:
        assert math.grade(f"It is {truth}.", truth).reward == 1
    for truth in load("reasoning_gym", part)["ground_truth"]:
        assert reasoning_gym.grade(json.loads(truth)["answer"], truth).reward == 1
    for truth in load("format", part)["ground_truth"]:
        assert format.grade("", truth).reward == 0


def test_shipped_prompts_fit_into_128_tokens() -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2_directory())
    paths = [str(path) for path in sorted(SHIPPED.glob("*.jsonl"))]
    assert len(paths) == 6
    assert tokenize_prompts(load_prompts(paths, set(NAMES)), tokenizer, prompt_length=128)[1] == []


def test_shipped_files_are_small() -> None:
    assert all(path.stat().st_size < 300_000 for path in SHIPPED.glob("*.jsonl"))
