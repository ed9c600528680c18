"""The options of a grader are the arguments of its function, and a wrong one is named before anything is graded."""

from __future__ import annotations

import importlib
import inspect
import json
from typing import get_args

import polars as pl
import pytest
from pydantic import ValidationError

from rlcore.rewards.options import OPTIONS, SERVICES
from rlcore.rewards.router import RewardRouter
from rlcore.shaping.settings import Grader, RewardConfig


def test_every_grader_has_its_options() -> None:
    assert set(get_args(Grader)) == OPTIONS.keys()


@pytest.mark.parametrize("grader", OPTIONS)
def test_the_options_are_the_arguments_of_the_grader_with_their_defaults(grader: str) -> None:
    module = importlib.import_module(f"rlcore.rewards.{grader}")
    function, given = (
        (module.ask, ("client", "task")) if grader in SERVICES else (module.grade, ("response_text", "ground_truth"))
    )
    first, second, *options = inspect.signature(function).parameters.values()
    assert (first.name, second.name) == given
    assert all(option.kind is inspect.Parameter.KEYWORD_ONLY for option in options)
    fields = {
        name: inspect.Parameter.empty if field.is_required() else field.default
        for name, field in OPTIONS[grader].model_fields.items()
    }
    arguments = {option.name: option.default for option in options}
    if grader == "judge":
        # The router gives it the URL of the server that `serve` starts.
        assert (fields.pop("serve"), fields.pop("url"), arguments.pop("url")) == (None, None, inspect.Parameter.empty)
    assert arguments == fields


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rewardtype": "soft"}, "rewardtype: unknown key; did you mean reward_type?"),
        ({"reward_type": "hard"}, "reward_type: 'hard' is not one of 'accuracy', 'loose', 'soft' or 'strict'"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], message: str) -> None:
    for section in ({"options": options}, {"weight": 0.5, "options": options}):
        whole = section if "weight" not in section else {}
        graders = () if "weight" not in section else ({"grader": "multiple_choice", **section},)
        grader = "multiple_choice" if whole else None
        with pytest.raises(ValidationError, match="options of grader multiple_choice") as raised:
            RewardConfig.model_validate({"grader": grader, "graders": graders, **whole})
        assert message in str(raised.value)


def test_options_without_their_grader_are_refused() -> None:
    graders = [{"grader": "math"}, {"grader": "format"}]
    with pytest.raises(ValidationError, match="options belong to grader"):
        RewardConfig.model_validate({"graders": graders, "options": {"loose": True}})


def test_the_graders_get_their_options() -> None:
    truth = json.dumps({"numbers": [3, 5, 4], "target": 8})
    rewards = {
        "all": RewardConfig.model_validate({"grader": "countdown"}),
        "some": RewardConfig.model_validate({"grader": "countdown", "options": {"all_numbers": False}}),
    }
    responses = pl.DataFrame(
        {
            "sample_id": ["a", "b"],
            "domain": ["all", "some"],
            "prompt_text": ["?"] * 2,
            "response_text": ["<answer>3 + 5</answer>"] * 2,
            "ground_truth": [truth] * 2,
        }
    )
    router = RewardRouter(rewards, processes=1)
    try:
        assert router.grade(responses)["reward"].to_list() == [0.0, 1.0]
    finally:
        router.close()
