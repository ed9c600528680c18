"""Layouts that cannot be are refused with the arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from rlcore.trainer.layout import Layout


def test_what_the_model_is_not_divided_over_is_data_parallel() -> None:
    layout = Layout(world_size=16, tensor_model_parallel_size=2, pipeline_model_parallel_size=2)
    assert layout.data_parallel_size == 4
    assert Layout().data_parallel_size == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"world_size": 6, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2},
            "world_size 6 is not tp 2 x pp 2 x cp 1 x dp: it must be a multiple of 4",
        ),
        (
            {"world_size": 4, "context_parallel_size": 2, "expert_model_parallel_size": 3},
            "expert_model_parallel_size 3 does not divide dp 2 x cp 2 = 4",
        ),
        ({"sequence_parallel": True}, "tensor_model_parallel_size is 1"),
        ({"virtual_pipeline_model_parallel_size": 2}, "pipeline_model_parallel_size is 1"),
        ({"world_size": 0}, "greater than 0"),
    ],
)
def test_a_layout_that_cannot_be_is_refused_with_the_arithmetic(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Layout.model_validate(settings)
