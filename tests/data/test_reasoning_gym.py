"""Problems that are made from the configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlcore.data.datasets import DatasetError, load_prompts
from rlcore.data.reasoning_gym import made_files, task_parameters
from rlcore.data.settings import ReasoningGymConfig
from rlcore.rewards.reasoning_gym import grade


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("RLVR_CACHE", str(tmp_path))
    return tmp_path


def source(**settings: Any) -> ReasoningGymConfig:
    return ReasoningGymConfig.model_validate({"task": "chain_sum", "train": 20, "held_out": 5} | settings)


def numbers(path: Path) -> list[int]:
    """How many terms each problem has."""
    return [json.loads(line)["ground_truth"]["metadata"]["num_terms"] for line in path.read_text().splitlines()]


def test_problems_are_rows_of_a_dataset_and_their_own_answers_are_right() -> None:
    train, held_out = made_files(source(domain="sums"))
    prompts = load_prompts([str(train), str(held_out)], {"sums"})
    assert len(prompts) == 25
    assert prompts["messages"].list.first().struct.field("content").n_unique() == 25
    for truth in prompts["ground_truth"]:
        assert grade(f"<answer>{json.loads(truth)['answer']}</answer>", truth).reward == 1.0


def test_the_same_settings_give_the_same_files_and_another_seed_gives_others(cache: Path) -> None:
    first = [path.read_bytes() for path in made_files(source())]
    other = [path.read_bytes() for path in made_files(source(seed=1))]
    for path in (cache / "problems").iterdir():
        path.unlink()
    assert [path.read_bytes() for path in made_files(source())] == first != other


def test_a_level_of_the_curriculum_makes_problems_harder_and_a_parameter_overrides_it() -> None:
    easy, hard = (made_files(source(curriculum={"num_terms": level}))[0] for level in (0, 2))
    assert max(numbers(easy)) < max(numbers(hard))
    assert max(numbers(made_files(source(curriculum=9, parameters={"max_terms": 3, "min_terms": 3}))[0])) == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "chain_sums"}, "no task 'chain_sums'; did you mean chain_sum?"),
        ({"task": "countdown"}, "the verifier of countdown executes the answer as code"),
        ({"curriculum": {"num_terms": 99}}, "the curriculum of chain_sum has no num_terms 99; it has num_terms to "),
        ({"curriculum": {"terms": 1}}, "the curriculum of chain_sum has no terms 1; it has num_terms to "),
        ({"parameters": {"terms": 2}}, "unexpected keyword argument 'terms'; its parameters are "),
        ({"parameters": {"min_terms": 9, "max_terms": 2}}, "chain_sum: "),
    ],
)
def test_what_cannot_be_made_is_said(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DatasetError) as caught:
        task_parameters(source(**settings))
    assert message in str(caught.value)


def test_too_few_different_problems_are_told_and_leave_no_file(cache: Path) -> None:
    with pytest.raises(
        DatasetError, match=r"only .* different problems as it is set up, but 500 to train on and 5 held"
    ):
        made_files(source(train=500, parameters={"max_terms": 2, "max_digits": 1}))
    assert not list(cache.glob("problems/*"))
