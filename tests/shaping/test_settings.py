"""Settings that are refused, by the key that is wrong; what the valid ones mean."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from rlcore.shaping.settings import MaskConfig, RewardConfig, ShapingConfig, WeightedGrader

REFUSED: list[tuple[type[Any], dict[str, Any], str, str]] = [
    (ShapingConfig, {"clip": 1.0}, "clip", "Extra inputs"),
    (ShapingConfig, {"clip_low": 1.0, "clip_high": 0.0}, "", "clip_low 1 must be below clip_high 0"),
    (ShapingConfig, {"clip_low": "nan"}, "clip_low", "finite number"),
    (ShapingConfig, {"scale": 0.0}, "scale", "greater than 0"),
    (ShapingConfig, {"norm_mean_type": "domain"}, "norm_mean_type", "'group', 'batch', 'running' or 'none'"),
    (ShapingConfig, {"overlong": {}}, "overlong.buffer_length", "Field required"),
    (ShapingConfig, {"overlong": {"buffer_length": 0}}, "overlong.buffer_length", "greater than 0"),
    (ShapingConfig, {"overlong": {"buffer_length": 4, "factor": -1}}, "overlong.factor", "greater than 0"),
    (ShapingConfig, {"length": {"coefficient": 0.1, "free_length": -1}}, "length.free_length", "greater than or equal"),
    (ShapingConfig, {"length": {}}, "length.coefficient", "Field required"),
    (ShapingConfig, {"repetition": {"ngram_size": 0, "coefficient": 1}}, "repetition.ngram_size", "greater than 0"),
    (ShapingConfig, {"repetition": {"ngram_size": 3}}, "repetition.coefficient", "Field required"),
    (MaskConfig, {"difficulty": {"low": 0.9, "high": 0.1}}, "difficulty", "low 0.9 must be below high 0.1"),
    (MaskConfig, {"history": {"low": 0.5, "high": 0.5}}, "history", "low 0.5 must be below high 0.5"),
    (MaskConfig, {"history": {"min_appearances": 0}}, "history.min_appearances", "greater than 0"),
    (MaskConfig, {"history": {"max_age": 0}}, "history.max_age", "greater than 0"),
    (MaskConfig, {"group_std_above": -0.1}, "group_std_above", "greater than or equal to 0"),
    (MaskConfig, {"group_mean": {"above": 0.1}}, "group_mean.above", "Extra inputs"),
    (RewardConfig, {}, "", "needs either grader, or graders"),
    (RewardConfig, {"grader": "math", "graders": [{"grader": "format"}]}, "", "needs either grader, or graders"),
    (RewardConfig, {"graders": [{"grader": "math"}, {"grader": "math"}]}, "", "each grader once, but got math, math"),
    (RewardConfig, {"graders": [{"grader": "taste"}]}, "graders.0.grader", "'reasoning_gym' or 'remote'"),
    (RewardConfig, {"graders": [{"grader": "math", "weight": "inf"}]}, "graders.0.weight", "finite number"),
]


@pytest.mark.parametrize(("model", "values", "key", "message"), REFUSED)
def test_a_wrong_setting_is_refused_by_its_key(
    model: type[Any], values: dict[str, Any], key: str, message: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(values)
    (problem,) = caught.value.errors()
    assert ".".join(str(part) for part in problem["loc"]) == key
    assert message in problem["msg"]


def test_an_empty_band_is_that_of_roll() -> None:
    masks = MaskConfig.model_validate({"difficulty": {}})
    assert masks.difficulty is not None
    assert (masks.difficulty.low, masks.difficulty.high) == (0.1, 0.95)


def test_one_grader_is_a_list_of_one() -> None:
    assert RewardConfig(grader="math").weighted_graders == (WeightedGrader(grader="math", weight=1.0),)


@pytest.mark.parametrize(
    "values", [{"grader": "math"}, {"graders": [{"grader": "math"}, {"grader": "format", "ground_truth": "{}"}]}]
)
def test_a_reward_section_that_was_dumped_with_its_defaults_loads_again(values: dict[str, Any]) -> None:
    config = RewardConfig.model_validate(values)
    assert RewardConfig.model_validate(config.model_dump(mode="json")) == config


def test_settings_load_without_polars_or_torch() -> None:
    check = "import sys, rlcore.shaping.settings; print([name for name in ('polars', 'torch') if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
