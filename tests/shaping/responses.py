"""Rollouts and rewards of a few responses, written down or random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import hypothesis.strategies as st
import polars as pl

from rlcore.batches import RolloutBatch
from rlcore.shaping.pipeline import shape
from rlcore.shaping.settings import MaskConfig, ShapingConfig
from rlcore.shaping.state import ShapingState
from tests.rollout_rows import PROMPT_AND_GRADE

RESPONSE_LENGTH = 10
COMPONENTS = pl.List(pl.Struct({"name": pl.String, "value": pl.Float64}))


@dataclass(frozen=True)
class Response:
    prompt: str
    reward: float | None
    """None: not scored."""
    domain: str = "math"
    tokens: tuple[int, ...] = (1, 2, 3)
    finish_reason: str = "stop"


def batches(responses: Sequence[Response], epoch: int = 0) -> tuple[pl.DataFrame, pl.DataFrame]:
    """RolloutBatch and RewardBatch; the sample ids are in the order of the responses."""
    length = [len(response.tokens) for response in responses]
    rollouts = pl.DataFrame(
        {
            "sample_id": [f"{response.prompt}@{epoch}#{i:03d}" for i, response in enumerate(responses)],
            "prompt_id": [f"{response.prompt}@{epoch}" for response in responses],
            "domain": [response.domain for response in responses],
            **PROMPT_AND_GRADE,
            "prompt_ids": [[1]] * len(responses),
            "response_ids": [list(response.tokens) for response in responses],
            "loss_mask": [[True] * count for count in length],
            "rollout_logprobs": [[-0.5] * count for count in length],
            "policy_versions": [[0] * count for count in length],
            "finish_reason": [response.finish_reason for response in responses],
            "response_text": "",
            "seconds": 0.0,
        },
        schema_overrides={name: column.dtype.type for name, column in RolloutBatch.to_schema().columns.items()},
    )
    rewards = rollouts.select(
        "sample_id",
        reward=pl.Series([response.reward for response in responses], dtype=pl.Float64),
        reward_status=pl.Series(["timeout" if response.reward is None else "scored" for response in responses]),
        components=pl.lit([], dtype=COMPONENTS),
        detail=pl.lit(""),
        seconds=pl.lit(0.0),
    )
    return rollouts, rewards


def shaped(
    responses: Sequence[Response],
    shaping: ShapingConfig | None = None,
    masks: MaskConfig | None = None,
    state: ShapingState | None = None,
    iteration: int = 1,
) -> tuple[pl.DataFrame, ShapingState]:
    """The responses, shaped alike in all domains."""
    rollouts, rewards = batches(responses)
    domains = {response.domain for response in responses}
    return shape(
        rollouts,
        rewards,
        shaping=dict.fromkeys(domains, shaping or ShapingConfig()),
        masks=masks or MaskConfig(),
        state=state or ShapingState(),
        iteration=iteration,
        response_length=RESPONSE_LENGTH,
    )


reward_values = st.one_of(st.sampled_from([0.0, 1.0, 0.1]), st.floats(-10, 10, width=16))
"""Equal ones among them, and such that no binary fraction equals."""


@st.composite
def groups(draw: st.DrawFn, domains: Sequence[str] = ("math", "code")) -> list[Response]:
    """Up to 5 groups of 1 to 4 responses; some without a reward, some groups without variance."""
    result = []
    for number in range(draw(st.integers(1, 5))):
        domain, equal = draw(st.sampled_from(domains)), draw(st.booleans())
        constant = draw(reward_values)
        for _ in range(draw(st.integers(1, 4))):
            reward = draw(st.one_of(st.none(), st.just(constant) if equal else reward_values))
            tokens = tuple(draw(st.lists(st.integers(0, 3), max_size=RESPONSE_LENGTH)))
            finish_reason = "length" if len(tokens) == RESPONSE_LENGTH else "stop"
            result.append(Response(f"p{number}", reward, domain, tokens, finish_reason))
    return result
