from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from rlcore.algorithms import discounted_returns
from tests.algorithms.strategies import Tokens, tokens


def test_returns_by_hand_skip_the_gap() -> None:
    # Without the masked token the rewards are 1, 0, 2 and γ = 1/2: 1 + 0 + 2/4, 0 + 2/2, 2.
    returns = discounted_returns(torch.tensor([[1.0, 9.0, 0.0, 2.0, 5.0]]), torch.tensor([[1, 0, 1, 1, 0]]), 0.5)
    assert returns.tolist() == [[1.5, 0.0, 1.0, 2.0, 0.0]]


def test_a_reward_at_the_end_reaches_every_token_undiscounted() -> None:
    rewards = torch.zeros(1, 1000)
    rewards[0, -1] = 1.0
    assert discounted_returns(rewards, torch.ones(1, 1000), 1.0).tolist() == [[1.0] * 1000]


@given(batch=tokens(), gamma=st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_equals_the_recursion_on_the_trajectory_without_its_gaps(batch: Tokens, gamma: float) -> None:
    returns = discounted_returns(batch.advantages, batch.mask, gamma)
    for row, rewards, mask in zip(returns, batch.advantages, batch.mask, strict=True):
        expected, following = [], 0.0
        for reward in reversed(rewards[mask].tolist()):
            following = reward + gamma * following
            expected.append(following)
        assert row[mask].tolist() == pytest.approx(expected[::-1], abs=1e-12)
        assert not row[~mask].any()


def test_long_discounted_trajectories_stay_exact() -> None:
    rewards = torch.ones(1, 4096)
    returns = discounted_returns(rewards, torch.ones(1, 4096), 0.9)
    assert returns[0, 0].item() == pytest.approx(10.0, rel=1e-5)
    assert returns[0, -2].item() == pytest.approx(1.9, rel=1e-6)
