from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from rlcore.algorithms import group_advantages

rewards_in_groups = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.5, 1.0, math.nan]), st.integers(0, 4)), min_size=1, max_size=24
).map(lambda rows: (torch.tensor([r for r, _ in rows], dtype=torch.float64), torch.tensor([g for _, g in rows])))


def test_grpo_by_hand() -> None:
    # Group 7: rewards 1, 0, 1: mean 2/3, unbiased variance (1/9 + 4/9 + 1/9)/2 = 1/3, std 0.577350.
    # Group 3: rewards 2, 4: mean 3, std √2.
    rewards = torch.tensor([1.0, 2.0, 0.0, 4.0, 1.0])
    advantages = group_advantages("grpo", rewards, torch.tensor([7, 3, 7, 3, 7]))
    expected = [0.333333 / 0.577351, -1 / 1.414215, -0.666667 / 0.577351, 1 / 1.414215, 0.333333 / 0.577351]
    assert advantages.tolist() == pytest.approx(expected, rel=1e-5)


def test_a_response_without_reward_is_excluded_from_the_baseline_and_gets_zero() -> None:
    rewards = torch.tensor([1.0, math.nan, 0.0, 1.0])
    advantages = group_advantages("grpo", rewards, torch.zeros(4, dtype=torch.int64))
    assert advantages[1] == 0
    without = group_advantages("grpo", rewards[[0, 2, 3]], torch.zeros(3, dtype=torch.int64))
    assert advantages[[0, 2, 3]].tolist() == without.tolist()


@pytest.mark.parametrize("rewards", [[0.1, 0.1, 0.1], [1e6, 1e6], [3.0], [2.0, math.nan], [math.nan, math.nan]])
def test_groups_without_variance_give_exactly_zero(rewards: list[float]) -> None:
    advantages = group_advantages("grpo", torch.tensor(rewards), torch.zeros(len(rewards), dtype=torch.int64))
    assert advantages.tolist() == [0.0] * len(rewards)


@given(case=rewards_in_groups)
def test_advantages_of_a_group_have_mean_zero_and_unit_deviation(case: tuple[torch.Tensor, torch.Tensor]) -> None:
    rewards, groups = case
    advantages = group_advantages("grpo", rewards, groups)
    assert advantages.isfinite().all()
    for group in groups.unique():
        members = advantages[(groups == group) & ~rewards.isnan()]
        assert members.sum().item() == pytest.approx(0, abs=1e-9)
        if members.any():
            assert members.std().item() == pytest.approx(1, rel=1e-4)


@given(case=rewards_in_groups, data=st.data())
def test_order_and_numbering_of_groups_change_nothing(
    case: tuple[torch.Tensor, torch.Tensor], data: st.DataObject
) -> None:
    rewards, groups = case
    expected = group_advantages("grpo", rewards, groups)
    order = torch.tensor(data.draw(st.permutations(range(len(rewards)))))
    numbers = torch.tensor(data.draw(st.permutations([-3, 0, 8, 100, 10**9])))
    torch.testing.assert_close(group_advantages("grpo", rewards[order], numbers[groups[order]]), expected[order])


@given(case=rewards_in_groups, scale=st.floats(0.5, 100), shift=st.floats(-10, 10))
def test_scale_and_shift_of_rewards_change_nothing(
    case: tuple[torch.Tensor, torch.Tensor], scale: float, shift: float
) -> None:
    rewards, groups = case
    expected = group_advantages("grpo", rewards, groups)
    torch.testing.assert_close(
        group_advantages("grpo", scale * rewards + shift, groups), expected, atol=1e-4, rtol=1e-4
    )


def test_unknown_names_and_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="no group advantage 'gropo'; there are grpo"):
        group_advantages("gropo", torch.zeros(2), torch.zeros(2))
    with pytest.raises(ValueError, match=r"rewards \(2,\) and groups \(3,\)"):
        group_advantages("grpo", torch.zeros(2), torch.zeros(3))
