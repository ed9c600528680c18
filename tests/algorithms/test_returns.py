from __future__ import annotations

import math
from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from rlcore.algorithms import discounted_returns
from rlcore.algorithms.returns import gae
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


@dataclass(frozen=True)
class Critique:
    """Rewards and values (B, T), float64."""

    rewards: Tensor
    values: Tensor
    mask: Tensor


critiques = tokens().map(lambda batch: Critique(batch.advantages, batch.logprobs, batch.mask))


def loop_gae(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """Equation 16 as the sum it is: Σ_l (γλ)^l δ_{t+l}."""
    following = [*values, 0.0][1:]
    residuals = [r + gamma * after - v for r, v, after in zip(rewards, values, following, strict=True)]
    return [
        sum((gamma * lam) ** distance * residual for distance, residual in enumerate(residuals[t:]))
        for t in range(len(rewards))
    ]


def test_gae_by_hand() -> None:
    # γ = λ = 1/2. δ: 0 + 0.5·2 − 1 = 0;  0 + 0.5·4 − 2 = 0;  8 + 0 − 4 = 4. A: 0 + 0.25·1, 0 + 0.25·4, 4.
    rewards, values = torch.tensor([[0.0, 0.0, 8.0]]), torch.tensor([[1.0, 2.0, 4.0]])
    advantages, returns = gae(rewards, values, torch.ones(1, 3), 0.5, 0.5)
    assert advantages.tolist() == [[0.25, 1.0, 4.0]]
    assert returns.tolist() == [[1.25, 3.0, 8.0]]


@given(batch=critiques, gamma=st.sampled_from([0.0, 0.5, 1.0]), lam=st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_gae_equals_the_sum_of_equation_16_on_the_trajectory_without_its_gaps(
    batch: Critique, gamma: float, lam: float
) -> None:
    advantages, returns = gae(batch.rewards, batch.values, batch.mask, gamma, lam)
    assert not advantages[~batch.mask].any() and not returns[~batch.mask].any()
    for row in range(len(batch.mask)):
        trains = batch.mask[row]
        values = batch.values[row][trains].tolist()
        expected = loop_gae(batch.rewards[row][trains].tolist(), values, gamma, lam)
        assert advantages[row][trains].tolist() == pytest.approx(expected, abs=1e-12)
        expected_returns = [a + v for a, v in zip(expected, values, strict=True)]
        assert returns[row][trains].tolist() == pytest.approx(expected_returns, abs=1e-12)


@given(batch=critiques, gamma=st.sampled_from([0.5, 1.0]))
def test_gae_with_lambda_one_is_the_return_minus_the_value(batch: Critique, gamma: float) -> None:
    # Equation 18.
    advantages, returns = gae(batch.rewards, batch.values, batch.mask, gamma, 1.0)
    expected = discounted_returns(batch.rewards, batch.mask, gamma)
    torch.testing.assert_close(returns, expected)
    torch.testing.assert_close(advantages, expected - batch.values * batch.mask)


@given(batch=critiques)
def test_gae_with_lambda_zero_is_the_residual(batch: Critique) -> None:
    # Equation 17, on the rows without a gap.
    whole = batch.mask.all(1)
    advantages, _ = gae(batch.rewards, batch.values, batch.mask, 0.9, 0.0)
    following = torch.nn.functional.pad(batch.values, (0, 1))[:, 1:]
    torch.testing.assert_close(advantages[whole], (batch.rewards + 0.9 * following - batch.values)[whole])


@given(batch=critiques, garbage=st.sampled_from([1e30, math.inf, math.nan]))
def test_what_stands_at_masked_positions_influences_no_return(batch: Critique, garbage: float) -> None:
    expected = gae(batch.rewards, batch.values, batch.mask, 0.9, 0.95)
    rewards, values = batch.rewards.where(batch.mask, garbage), batch.values.where(batch.mask, garbage)
    torch.testing.assert_close(gae(rewards, values, batch.mask, 0.9, 0.95), expected)
    clean = discounted_returns(batch.rewards, batch.mask, 0.9)
    torch.testing.assert_close(discounted_returns(rewards, batch.mask, 0.9), clean)


@given(batch=critiques, data=st.data())
def test_rows_and_padding_do_not_influence_each_other_in_gae(batch: Critique, data: st.DataObject) -> None:
    advantages, returns = gae(batch.rewards, batch.values, batch.mask, 0.9, 0.95)
    order = torch.tensor(data.draw(st.permutations(range(len(batch.mask)))))
    rewards, values, mask = (
        torch.nn.functional.pad(tensor[order], (2, 3)) for tensor in (batch.rewards, batch.values, batch.mask)
    )
    shuffled = gae(rewards, values, mask, 0.9, 0.95)
    torch.testing.assert_close(shuffled[0][:, 2:-3], advantages[order])
    torch.testing.assert_close(shuffled[1][:, 2:-3], returns[order])


def test_gae_of_a_right_critic_is_zero() -> None:
    # The value of a state is the reward to come: 1 at every token, γ = 1.
    rewards = torch.zeros(1, 1000)
    rewards[0, -1] = 1.0
    advantages, returns = gae(rewards, torch.ones(1, 1000), torch.ones(1, 1000), 1.0, 0.95)
    assert not advantages.any() and returns.tolist() == [[1.0] * 1000]


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (1, 1)])
def test_empty_and_single_token_batches(shape: tuple[int, int]) -> None:
    ones = torch.ones(shape)
    advantages, returns = gae(2 * ones, ones, ones, 0.9, 0.95)
    assert advantages.tolist() == ones.tolist() and returns.tolist() == (2 * ones).tolist()
