import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from transformers import AutoTokenizer

from rlcore.data.datasets import load_prompts, tokenize_prompts
from rlcore.data.generate.__main__ import write_all
from rlcore.data.generate.countdown import reachable
from rlcore.pretrained import smollm2_directory
from rlcore.rewards import countdown, format, ifeval, math, multiple_choice, reasoning_gym
from rlcore.rewards.ifeval_checks import CHECKS

SHIPPED = Path(__file__).parents[2] / "configs" / "data"
NAMES = ("arithmetic", "countdown", "format", "ifeval", "multiple_choice", "reasoning_gym")


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
    for truth in load("multiple_choice", part)["ground_truth"]:
        assert multiple_choice.grade(rf"It is \boxed{{{truth}}}.", truth).reward == 1
    for truth in load("ifeval", part)["ground_truth"]:
        assert ifeval.grade("", truth).reward == 0
    for truth in load("countdown", part)["ground_truth"]:
        assert countdown.grade("<answer>0</answer>", truth).components["answered"] == 1


@pytest.mark.parametrize("part", ["train", "held_out"])
def test_every_countdown_has_a_solution(part: str) -> None:
    for truth in map(json.loads, load("countdown", part)["ground_truth"]):
        assert truth["target"] in reachable(tuple(truth["numbers"]))


def test_no_countdown_numbers_are_both_trained_on_and_held_out() -> None:
    def problems(part: str) -> set[tuple[int, ...]]:
        return {tuple(sorted(json.loads(truth)["numbers"])) for truth in load("countdown", part)["ground_truth"]}

    assert len(problems("train")) == 320
    assert not problems("train") & problems("held_out")


@pytest.mark.parametrize("part", ["train", "held_out"])
def test_every_instruction_of_ifeval_occurs_equally_often(part: str) -> None:
    tags = Counter(load("ifeval", part)["tag"])
    assert tags.keys() == CHECKS.keys()
    assert max(tags.values()) - min(tags.values()) <= 1


def test_no_question_of_the_choices_is_both_trained_on_and_held_out() -> None:
    def asked(part: str) -> set[str]:
        return {question.split("\n")[0] for question in questions(load("multiple_choice", part))}

    assert not asked("train") & asked("held_out")


def test_shipped_prompts_fit_into_128_tokens() -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2_directory())
    paths = [str(path) for path in sorted(SHIPPED.glob("*.jsonl"))]
    assert len(paths) == 2 * len(NAMES)
    assert tokenize_prompts(load_prompts(paths, set(NAMES)), tokenizer, prompt_length=128)[1] == []


def test_shipped_files_are_small() -> None:
    assert all(path.stat().st_size < 300_000 for path in SHIPPED.glob("*.jsonl"))
