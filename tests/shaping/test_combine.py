"""Several graders on one response."""

from __future__ import annotations

import random
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from rlcore.batches import RewardBatch, validate
from rlcore.shaping.combine import combine_graders
from tests.shaping.responses import COMPONENTS

Row = tuple[str, str, float, float | None, str, dict[str, float], str]


def verdicts(*rows: Row) -> pl.DataFrame:
    """From (sample_id, grader, weight, reward, status, components, detail); each took half a second."""
    columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)]
    components = [[{"name": name, "value": value} for name, value in parts.items()] for parts in columns[5]]
    return pl.DataFrame(
        {
            "sample_id": columns[0],
            "grader": columns[1],
            "weight": columns[2],
            "reward": pl.Series(columns[3], dtype=pl.Float64),
            "reward_status": columns[4],
            "components": pl.Series(components, dtype=COMPONENTS),
            "detail": columns[6],
            "seconds": 0.5,
        }
    )


def combined(*rows: Row) -> pl.DataFrame:
    return validate(combine_graders(verdicts(*rows)), RewardBatch)


def test_the_reward_is_the_weighted_sum() -> None:
    # 1·1 + 0.25·0.5 = 1.125
    batch = combined(
        ("a", "math", 1.0, 1.0, "scored", {"correct": 1.0, "answered": 1.0}, ""),
        ("a", "format", 0.25, 0.5, "scored", {"quoted": 0.5}, ""),
    )
    assert batch["reward"].to_list() == [1.125]
    assert batch["reward_status"].to_list() == ["scored"]
    assert batch["seconds"].to_list() == [1.0]
    assert batch["detail"].to_list() == [""]
    assert [(part["name"], part["value"]) for part in batch["components"][0]] == [
        ("math", 1.0),
        ("math.correct", 1.0),
        ("math.answered", 1.0),
        ("format", 0.5),
        ("format.quoted", 0.5),
    ]


def test_the_verdict_of_a_single_grader_stands_as_it_is() -> None:
    frame = verdicts(
        ("a", "math", 1.0, 1.0, "scored", {"correct": 1.0, "answered": 1.0}, ""),
        ("b", "math", 1.0, None, "timeout", {}, "killed"),
        ("c", "format", 1.0, 0.5, "scored", {}, ""),
    )
    assert_frame_equal(combine_graders(frame), frame.drop("grader", "weight"), check_column_order=False)


def test_a_weight_of_0_is_recorded_and_not_rewarded() -> None:
    batch = combined(("a", "math", 1.0, 0.5, "scored", {}, ""), ("a", "format", 0.0, 1.0, "scored", {}, ""))
    assert batch["reward"].to_list() == [0.5]
    assert [part["name"] for part in batch["components"][0]] == ["math", "format"]


def test_a_grader_that_failed_leaves_the_response_unscored() -> None:
    batch = combined(
        ("a", "math", 1.0, 1.0, "scored", {"correct": 1.0}, ""),
        ("a", "format", 0.2, None, "timeout", {}, "killed after 10 s"),
        ("a", "reasoning_gym", 0.2, None, "grader_error", {}, "KeyError: 'x'"),
        ("b", "math", 1.0, 1.0, "scored", {"correct": 1.0}, ""),
    )
    assert batch["reward"].to_list() == [None, 1.0]
    assert batch["reward_status"].to_list() == ["timeout", "scored"]
    assert batch["detail"].to_list() == ["format: killed after 10 s; reasoning_gym: KeyError: 'x'", ""]
    assert batch["components"].list.len().to_list() == [0, 1]


@given(
    st.lists(
        st.lists(st.tuples(st.floats(-2, 2), st.one_of(st.none(), st.floats(-2, 2))), min_size=1, max_size=3),
        min_size=1,
        max_size=6,
    ),
    st.randoms(use_true_random=False),
)
def test_responses_are_combined_apart_and_in_their_order(
    responses: list[list[tuple[float, float | None]]], order: random.Random
) -> None:
    names = [f"s{number}" for number in range(len(responses))]
    order.shuffle(names)
    batch = combined(
        *(
            (name, f"g{index}", weight, reward, "timeout" if reward is None else "scored", {}, "")
            for name, graders in zip(names, responses, strict=True)
            for index, (weight, reward) in enumerate(graders)
        )
    )
    assert batch["sample_id"].to_list() == names
    for graders, reward in zip(responses, batch["reward"], strict=True):
        parts = [None if part is None else weight * part for weight, part in graders]
        whole = None if None in parts else pytest.approx(sum(part for part in parts if part is not None))
        assert reward == whole
