from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from rlcore.algorithms import group_advantages

Steps = dict[str, Tensor]

# Two episodes of one group. The first earns 1: steps in states 5, 6 with step rewards 0, 1. The second earns 0: steps
# in states 5, 9, 6, all of reward 0.
EXAMPLE: Steps = {
    "rewards": torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0]),
    "groups": torch.tensor([4, 4, 4, 4, 4]),
    "episodes": torch.tensor([10, 10, 20, 20, 20]),
    "steps": torch.tensor([0, 1, 0, 1, 2]),
    "step_rewards": torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0]),
    "states": torch.tensor([5, 6, 5, 9, 6]),
}


def gigpo(steps: Steps, **options: Any) -> Tensor:
    return group_advantages("gigpo", **steps, **options)


def rows(steps: Steps, which: Tensor) -> Steps:
    return {key: value[which] for key, value in steps.items()}


def test_by_hand() -> None:
    # Episodes: mean 1/2 of two episodes, not 2/5 of five steps: ±1/2. Returns with γ_s = 0.8: 0.8, 1 and 0, 0, 0.
    # State 5: 0.8 and 0, mean 0.4: ±0.4. State 6: 1 and 0: ±0.5. State 9 is visited once: 0.
    advantages = gigpo(EXAMPLE, step_gamma=0.8, episode_weight=2.0, step_weight=10.0, divide_by_std=False)
    assert advantages.tolist() == pytest.approx([1 + 4, 1 + 5, -1 - 4, -1, -1 - 5])


def test_by_hand_in_deviations() -> None:
    # Two values a, b deviate by |a − b|/√2, half their distance is √2/2 = 0.707107 of it.
    advantages = gigpo(EXAMPLE, step_gamma=0.8)
    expected = [0.707106 + 0.707106, 0.707106 + 0.707106, -1.414212, -0.707106, -1.414212]
    assert advantages.tolist() == pytest.approx(expected, abs=3e-6)


def test_a_state_counts_within_its_group_only() -> None:
    other = {**EXAMPLE, "groups": torch.tensor([4, 4, 8, 8, 8])}
    assert gigpo(other).tolist() == [0.0] * 5


@st.composite
def episodes_in_groups(draw: st.DrawFn) -> Steps:
    """Up to 6 episodes of up to 4 steps, in up to 3 groups, some without a reward; rows in any order."""
    columns: list[tuple[float, int, int, int, float, int]] = []
    for episode in range(draw(st.integers(1, 6))):
        reward, group = draw(st.sampled_from([0.0, 0.5, 1.0, math.nan])), draw(st.integers(0, 2))
        for step in range(draw(st.integers(1, 4))):
            step_reward, state = draw(st.sampled_from([0.0, 0.25, 1.0])), draw(st.integers(0, 2))
            columns.append((reward, group, 7 * episode, 3 * step, step_reward, state))
    rewards, groups, episodes, steps, step_rewards, states = zip(*draw(st.permutations(columns)), strict=True)
    return {
        "rewards": torch.tensor(rewards, dtype=torch.float64),
        "groups": torch.tensor(groups),
        "episodes": torch.tensor(episodes),
        "steps": torch.tensor(steps),
        "step_rewards": torch.tensor(step_rewards, dtype=torch.float64),
        "states": torch.tensor(states),
    }


@given(steps=episodes_in_groups(), data=st.data())
def test_the_order_of_rows_changes_nothing(steps: Steps, data: st.DataObject) -> None:
    order = torch.tensor(data.draw(st.permutations(range(len(steps["rewards"])))))
    torch.testing.assert_close(gigpo(rows(steps, order)), gigpo(steps)[order])


@given(steps=episodes_in_groups())
def test_an_episode_without_reward_gets_zero_and_is_in_no_mean(steps: Steps) -> None:
    scored = ~steps["rewards"].isnan()
    advantages = gigpo(steps)
    assert advantages.isfinite().all() and not advantages[~scored].any()
    torch.testing.assert_close(gigpo(rows(steps, scored)), advantages[scored])


@given(steps=episodes_in_groups())
def test_a_missing_step_reward_excludes_the_episode(steps: Steps) -> None:
    missing = steps["episodes"] == steps["episodes"][0]
    partly = steps["step_rewards"].clone()
    partly[0] = math.nan
    whole = steps["rewards"].masked_fill(missing, math.nan)
    torch.testing.assert_close(gigpo({**steps, "step_rewards": partly}), gigpo({**steps, "rewards": whole}))


@given(steps=episodes_in_groups())
def test_without_step_weight_every_step_has_the_grpo_advantage_of_its_episode(steps: Steps) -> None:
    first = torch.tensor([int((steps["episodes"] == episode).nonzero()[0]) for episode in steps["episodes"].unique()])
    of_episodes = group_advantages("grpo", steps["rewards"][first], steps["groups"][first])
    expected = of_episodes[steps["episodes"].unique(return_inverse=True)[1]]
    torch.testing.assert_close(gigpo(steps, step_weight=0.0), expected)


@given(steps=episodes_in_groups(), gamma=st.sampled_from([0.0, 0.5, 1.0]))
def test_step_advantages_are_those_of_the_discounted_returns_of_a_state(steps: Steps, gamma: float) -> None:
    returns = []
    for episode, step in zip(steps["episodes"], steps["steps"], strict=True):
        later = (steps["episodes"] == episode) & (steps["steps"] >= step)
        returns.append((gamma ** ((steps["steps"][later] - step) / 3) * steps["step_rewards"][later]).sum())
    scores = torch.stack(returns).masked_fill(steps["rewards"].isnan(), math.nan)
    expected = group_advantages("grpo", scores, steps["groups"] * 10 + steps["states"])
    torch.testing.assert_close(gigpo(steps, episode_weight=0.0, step_gamma=gamma), expected)


def test_inconsistent_episodes_are_refused() -> None:
    with pytest.raises(ValueError, match="the rows of episode 10 differ in reward or group"):
        gigpo({**EXAMPLE, "rewards": torch.tensor([1.0, 0.5, 0.0, 0.0, 0.0])})
    with pytest.raises(ValueError, match="the rows of episode 20 differ in reward or group"):
        gigpo({**EXAMPLE, "groups": torch.tensor([4, 4, 4, 4, 5])})
    with pytest.raises(ValueError, match="episode 20 has two rows of step 1"):
        gigpo({**EXAMPLE, "steps": torch.tensor([0, 1, 0, 1, 1])})
