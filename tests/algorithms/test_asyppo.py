from __future__ import annotations

import math
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from rlcore.algorithms import LossInputs, aggregate, policy_loss
from rlcore.algorithms.asyppo import advantage_mask, asyppo_loss, divide_responses, entropy_mask, value_mean_and_std
from tests.algorithms.strategies import Tokens, tokens


@given(groups=st.lists(st.integers(-3, 5), max_size=40), critics=st.integers(1, 5), seed=st.integers(0, 99))
def test_responses_are_divided_evenly_in_every_group_and_in_the_batch(
    groups: list[int], critics: int, seed: int
) -> None:
    numbers = torch.tensor(groups, dtype=torch.int64)
    division = divide_responses(numbers, critics, torch.Generator().manual_seed(seed))
    assert division.shape == numbers.shape
    for members in (division, *(division[numbers == group] for group in numbers.unique())):
        counts = members.bincount(minlength=critics)
        assert len(counts) == critics and counts.max() - counts.min() <= 1


def test_the_division_is_random_and_repeatable() -> None:
    groups = torch.arange(64).repeat_interleave(8)
    first, again, other = (divide_responses(groups, 2, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    # Every place in a group goes to either critic about equally often: 64 fair coins, 4 deviations.
    assert (first.view(64, 8).double().mean(0) - 0.5).abs().max() < 4 * 0.5 / 8


def test_mean_and_deviation_by_hand() -> None:
    # Values 1 and 4: mean 2.5, deviation |1 − 4|/2 = 1.5.
    mean, std = value_mean_and_std(torch.tensor([[[1.0, 2.0]], [[4.0, 2.0]]]))
    assert mean.tolist() == [[2.5, 2.0]] and std.tolist() == [[1.5, 0.0]]


def test_masks_by_hand() -> None:
    # Ten valid tokens: two of them are 20 %. The masked 0.0 and 99.0 do not count.
    std = torch.tensor([[0.3, 0.9, 0.0, 0.1, 0.5, 0.8], [0.2, 0.7, 0.4, 0.6, 0.55, 99.0]])
    mask = torch.tensor([[1, 1, 0, 1, 1, 1], [1, 1, 1, 1, 1, 0]])
    assert advantage_mask(std, mask).int().tolist() == [[1, 1, 0, 0, 1, 1], [0, 1, 1, 1, 1, 0]]
    assert entropy_mask(std, mask).int().tolist() == [[1, 0, 0, 1, 1, 0], [1, 1, 1, 1, 1, 0]]


@pytest.mark.parametrize("select", [advantage_mask, entropy_mask])
def test_the_count_is_exact_among_ties(select: Callable[..., Tensor]) -> None:
    mask = torch.ones(3, 5)
    assert int(select(torch.ones(3, 5), mask).sum()) == 12
    assert int(select(torch.ones(3, 5), mask, fraction=0.0).sum()) == 15
    assert not select(torch.ones(3, 5), mask, fraction=1.0).any()


@given(batch=tokens(), fraction=st.floats(0, 1), garbage=st.sampled_from([0.0, math.inf, math.nan]))
def test_masks_drop_the_given_fraction_of_the_extremes(batch: Tokens, fraction: float, garbage: float) -> None:
    std = batch.advantages.abs().where(batch.mask, garbage)
    agree, disagree = advantage_mask(std, batch.mask, fraction), entropy_mask(std, batch.mask, fraction)
    for kept in (agree, disagree):
        assert not (kept & ~batch.mask).any()
        assert int((batch.mask & ~kept).sum()) == round(fraction * int(batch.mask.sum()))
    if agree.any() and (batch.mask & ~agree).any():
        assert std[batch.mask & ~agree].max() <= std[agree].min()
    if disagree.any() and (batch.mask & ~disagree).any():
        assert std[batch.mask & ~disagree].min() >= std[disagree].max()


def test_objective_by_hand() -> None:
    # |o| = 4, ratio 1, A = 2: I^A drops the first token, I^H the last. Loss −(0 + 2 + 2 + 2)/4 − 0.1·(1 + 1 + 1 + 0)/4.
    logprobs = torch.zeros(1, 4)
    inputs = LossInputs(logprobs, logprobs, torch.full((1, 4), 2.0), torch.ones(1, 4))
    token_loss, _ = policy_loss("ppo", inputs)
    first_out, last_out = torch.tensor([[0, 1, 1, 1]]), torch.tensor([[1, 1, 1, 0]])
    loss = asyppo_loss(token_loss, torch.ones(1, 4), first_out, last_out, entropy_coef=0.1)
    assert aggregate(loss, inputs.mask, "seq-mean-token-mean").item() == pytest.approx(-1.5 - 0.075)


def test_dropped_tokens_give_no_gradient() -> None:
    token_loss, entropy = torch.full((1, 3), math.nan), torch.full((1, 3), math.nan)
    token_loss[0, 2] = entropy[0, 1] = 1.0
    token_loss.requires_grad_()
    entropy.requires_grad_()
    loss = asyppo_loss(token_loss, entropy, torch.tensor([[0, 0, 1]]), torch.tensor([[0, 1, 0]]), entropy_coef=0.5)
    assert loss.tolist() == [[0.0, -0.5, 1.0]]
    loss.sum().backward()
    assert token_loss.grad is not None and token_loss.grad.tolist() == [[0.0, 0.0, 1.0]]
    assert entropy.grad is not None and entropy.grad.tolist() == [[0.0, -0.5, 0.0]]
