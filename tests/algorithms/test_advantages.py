from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from rlcore.algorithms import group_advantages
from rlcore.algorithms.advantages import ESTIMATORS
from rlcore.algorithms.advantages.registry import estimator


@dataclass(frozen=True)
class Batch:
    """Responses with everything that some estimator reads, float64. Each is an episode of one step."""

    rewards: Tensor
    groups: Tensor
    lengths: Tensor
    greedy_rewards: Tensor

    def advantages(self, name: str, **options: Any) -> Tensor:
        rows = torch.arange(len(self.rewards))
        inputs = {
            "lengths": self.lengths,
            "greedy_rewards": self.greedy_rewards,
            "episodes": rows,
            "steps": torch.zeros_like(rows),
            "step_rewards": self.rewards,
            "states": torch.zeros_like(rows),
        }
        return group_advantages(
            name, self.rewards, self.groups, **{key: inputs[key] for key in ESTIMATORS[name].inputs}, **options
        )

    def rows(self, which: Tensor) -> Batch:
        return Batch(self.rewards[which], self.groups[which], self.lengths[which], self.greedy_rewards[which])

    def scaled(self, scale: float, shift: float) -> Batch:
        return Batch(scale * self.rewards + shift, self.groups, self.lengths, scale * self.greedy_rewards + shift)


def batch_of(rewards: list[float], groups: list[int] | None = None) -> Batch:
    numbers = torch.tensor(groups if groups is not None else [0] * len(rewards), dtype=torch.int64)
    scores = torch.tensor(rewards, dtype=torch.float64)
    return Batch(scores, numbers, torch.arange(1, len(rewards) + 1), torch.zeros_like(scores))


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Up to 24 responses in up to 5 groups; groups of one, without variance and without rewards among them."""
    row = st.tuples(st.sampled_from([0.0, 0.1, 0.5, 1.0, math.nan]), st.integers(0, 4), st.integers(0, 9))
    rewards, groups, lengths = zip(*draw(st.lists(row, min_size=1, max_size=24)), strict=True)
    numbers = torch.tensor(groups)
    greedy = torch.tensor(draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=5, max_size=5)), dtype=torch.float64)
    return Batch(torch.tensor(rewards, dtype=torch.float64), numbers, torch.tensor(lengths), greedy[numbers])


OPMD_SOFT = ("opmd", {"baseline": "log_mean_exp", "tau": 0.5})
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ESTIMATORS),
    OPMD_SOFT,
    ("gigpo", {"divide_by_std": False}),
]
DIVIDED: list[tuple[str, dict[str, Any]]] = [("grpo", {}), ("lite_ppo", {}), ("gigpo", {})]
CENTRED = [
    ("dr_grpo", {}),
    ("rloo", {}),
    ("reinforce_pp_baseline", {}),
    ("opmd", {}),
    ("gigpo", {"divide_by_std": False}),
]
WITH_GROUP_BASELINE = [*DIVIDED, *CENTRED, OPMD_SOFT, ("opo", {}), ("max_rl", {})]
WITHOUT_BASELINE: list[tuple[str, dict[str, Any]]] = [("reinforce", {}), ("reinforce_pp", {}), ("gae", {})]


fewer = settings(max_examples=20)
"""For properties of every variant."""


def each(variants: list[tuple[str, dict[str, Any]]]) -> pytest.MarkDecorator:
    ids = ["-".join([name, *map(str, options.values())]) for name, options in variants]
    return pytest.mark.parametrize(("name", "options"), variants, ids=ids)


def test_every_estimator_is_in_a_family_of_laws() -> None:
    tested = {name for name, _ in [*WITH_GROUP_BASELINE, *WITHOUT_BASELINE, ("remax", {})]}
    assert tested == set(ESTIMATORS)


# Two groups: 7 with rewards 1, 0, 1 (rows 0, 2, 4), 3 with rewards 2, 4 (rows 1, 3).
#   group 7: mean 2/3, unbiased variance (1/9 + 4/9 + 1/9) / 2 = 1/3, deviation 0.577350
#   group 3: mean 3, deviation √2
#   batch: mean 8/5, variance (0.36 + 0.16 + 2.56 + 5.76 + 0.36) / 4 = 2.3, deviation 1.516575
REWARDS, GROUPS = [1.0, 2.0, 0.0, 4.0, 1.0], [7, 3, 7, 3, 7]
THIRD = 1 / 3


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("grpo", {}, [0.577349, -0.707106, -1.154699, 0.707106, 0.577349]),  # 0.333333/0.577351, −1/1.414215, …
        ("dr_grpo", {}, [THIRD, -1, -2 * THIRD, 1, THIRD]),
        ("lite_ppo", {}, [0.219793, -0.659380, -0.439586, 0.659380, 0.219793]),  # 0.333333/1.516576, …
        ("rloo", {}, [1 - 0.5, 2 - 4, 0 - 1, 4 - 2, 1 - 0.5]),
        ("reinforce", {}, REWARDS),
        ("reinforce_pp", {}, REWARDS),
        ("gae", {}, REWARDS),
        ("reinforce_pp_baseline", {}, [THIRD, -1, -2 * THIRD, 1, THIRD]),
        ("max_rl", {}, [THIRD / (2 / 3), -1 / 3, -1, 1 / 3, THIRD / (2 / 3)]),
        ("remax", {"greedy_rewards": [1.0, 3.0, 1.0, 3.0, 1.0]}, [0, -1, -1, 1, 0]),
        # Baselines (1·1 + 3·0 + 4·1)/8 = 0.625 and (2·2 + 6·4)/8 = 3.5.
        ("opo", {"lengths": [1, 2, 3, 6, 4]}, [0.375, -1.5, -0.625, 0.5, 0.375]),
        ("opmd", {}, [THIRD, -1, -2 * THIRD, 1, THIRD]),
        # Baselines 2·log((2·e^½ + 1)/3) = 2·log 1.432481 = 0.718816 and 2·log((e + e²)/2) = 2·log 5.053669 = 3.240230.
        ("opmd", {"baseline": "log_mean_exp", "tau": 2.0}, [0.281184, -1.240230, -0.718816, 0.759770, 0.281184]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_by_hand(name: str, options: dict[str, Any], expected: list[float]) -> None:
    options = {key: torch.tensor(value) if isinstance(value, list) else value for key, value in options.items()}
    advantages = group_advantages(name, torch.tensor(REWARDS), torch.tensor(GROUPS), **options)
    assert advantages.dtype == torch.float32
    assert advantages.tolist() == pytest.approx(expected, abs=2e-6)


@each(VARIANTS)
@fewer
@given(batch=batches(), data=st.data())
def test_order_and_numbering_change_nothing(
    name: str, options: dict[str, Any], batch: Batch, data: st.DataObject
) -> None:
    expected = batch.advantages(name, **options)
    order = torch.tensor(data.draw(st.permutations(range(len(batch.rewards)))))
    numbers = torch.tensor(data.draw(st.permutations([-3, 0, 8, 100, 10**9])))
    renumbered = Batch(batch.rewards, numbers[batch.groups], batch.lengths, batch.greedy_rewards).rows(order)
    torch.testing.assert_close(renumbered.advantages(name, **options), expected[order])


@each(VARIANTS)
@fewer
@given(batch=batches())
def test_a_response_without_reward_gets_zero_and_is_in_no_baseline(
    name: str, options: dict[str, Any], batch: Batch
) -> None:
    advantages = batch.advantages(name, **options)
    scored = ~batch.rewards.isnan()
    assert advantages.isfinite().all() and not advantages[~scored].any()
    torch.testing.assert_close(batch.rows(scored).advantages(name, **options), advantages[scored])


@each([variant for variant in VARIANTS if variant[0] != "lite_ppo"])
@fewer
@given(batch=batches())
def test_groups_do_not_influence_each_other(name: str, options: dict[str, Any], batch: Batch) -> None:
    advantages = batch.advantages(name, **options)
    for group in batch.groups.unique():
        members = batch.groups == group
        torch.testing.assert_close(batch.rows(members).advantages(name, **options), advantages[members])


@each(WITH_GROUP_BASELINE)
@pytest.mark.parametrize("rewards", [[0.1, 0.1, 0.1], [1e6, 1e6], [3.0], [2.0, math.nan], [math.nan, math.nan]])
def test_groups_without_variance_give_exactly_zero(name: str, options: dict[str, Any], rewards: list[float]) -> None:
    assert batch_of(rewards).advantages(name, **options).tolist() == [0.0] * len(rewards)


@each([*DIVIDED, *CENTRED, ("max_rl", {})])
@given(batch=batches())
def test_advantages_of_a_group_sum_to_zero(name: str, options: dict[str, Any], batch: Batch) -> None:
    advantages = batch.advantages(name, **options)
    for group in batch.groups.unique():
        assert advantages[batch.groups == group].sum().item() == pytest.approx(0, abs=1e-9)


@given(batch=batches())
def test_grpo_has_unit_deviation_in_every_group_with_variance(batch: Batch) -> None:
    advantages = batch.advantages("grpo")
    for group in batch.groups.unique():
        members = advantages[(batch.groups == group) & ~batch.rewards.isnan()]
        assert not members.any() or members.std().item() == pytest.approx(1, rel=1e-4)


@given(batch=batches())
def test_opo_sums_to_zero_weighted_with_the_lengths(batch: Batch) -> None:
    weighted = batch.lengths * batch.advantages("opo")
    for group in batch.groups.unique():
        assert weighted[batch.groups == group].sum().item() == pytest.approx(0, abs=1e-9)


@given(batch=batches(), length=st.integers(1, 9))
def test_opo_of_equal_lengths_is_dr_grpo(batch: Batch, length: int) -> None:
    equal = Batch(batch.rewards, batch.groups, torch.full_like(batch.lengths, length), batch.greedy_rewards)
    torch.testing.assert_close(equal.advantages("opo"), batch.advantages("dr_grpo"))


@given(batch=batches())
def test_rloo_is_dr_grpo_times_n_over_n_minus_one(batch: Batch) -> None:
    expected = batch.advantages("dr_grpo")
    for group in batch.groups.unique():
        members = batch.groups == group
        count = int((members & ~batch.rewards.isnan()).sum())
        expected[members] *= count / max(count - 1, 1)
    torch.testing.assert_close(batch.advantages("rloo"), expected)


@given(batch=batches(), tau=st.floats(0.05, 10))
def test_opmd_weights_exp_of_the_advantage_average_to_one(batch: Batch, tau: float) -> None:
    # A = R − τ·log(mean exp(R/τ)), hence mean exp(A/τ) = 1.
    weights = (batch.advantages("opmd", baseline="log_mean_exp", tau=tau) / tau).exp()
    for group in batch.groups[~batch.rewards.isnan()].unique():
        assert weights[(batch.groups == group) & ~batch.rewards.isnan()].mean().item() == pytest.approx(1)


def test_opmd_tends_to_the_mean_and_to_the_maximum() -> None:
    batch = batch_of([0.0, 1.0, 5.0])
    hot = batch.advantages("opmd", baseline="log_mean_exp", tau=1e6)
    assert hot.tolist() == pytest.approx([-2, -1, 3], abs=1e-4)
    cold = batch.advantages("opmd", baseline="log_mean_exp", tau=1e-4)
    assert cold.tolist() == pytest.approx([-5, -4, 0], abs=1e-3)


def test_max_rl_is_zero_where_the_mean_is_not_positive() -> None:
    batch = batch_of([-1.0, 1.0, -3.0, 1.0, 0.0, 0.0], [0, 0, 1, 1, 2, 2])
    assert batch.advantages("max_rl").tolist() == [0.0] * 6


def test_opo_of_empty_responses_is_zero() -> None:
    empty = Batch(torch.tensor([0.0, 1.0]), torch.zeros(2, dtype=torch.int64), torch.zeros(2), torch.zeros(2))
    assert empty.advantages("opo").tolist() == [0.0, 0.0]


def test_remax_without_a_greedy_reward_is_zero() -> None:
    batch = Batch(torch.ones(2), torch.zeros(2, dtype=torch.int64), torch.ones(2), torch.tensor([0.5, math.nan]))
    assert batch.advantages("remax").tolist() == [0.5, 0.0]


@each([*CENTRED, OPMD_SOFT, ("opo", {}), ("remax", {})])
@given(batch=batches(), scale=st.floats(0.5, 100), shift=st.floats(-10, 10))
def test_a_shift_of_rewards_changes_nothing_and_a_scale_scales(
    name: str, options: dict[str, Any], batch: Batch, scale: float, shift: float
) -> None:
    scaled_options = {key: scale * value if key == "tau" else value for key, value in options.items()}
    scaled = batch.scaled(scale, shift).advantages(name, **scaled_options)
    torch.testing.assert_close(scaled, scale * batch.advantages(name, **options), atol=1e-10, rtol=1e-10)


@each(DIVIDED)
@given(batch=batches(), scale=st.floats(0.5, 100), shift=st.floats(-10, 10))
def test_divided_by_a_deviation_neither_shift_nor_scale_change_anything(
    name: str, options: dict[str, Any], batch: Batch, scale: float, shift: float
) -> None:
    expected = batch.advantages(name, **options)
    scaled = batch.scaled(scale, shift).advantages(name, **options)
    torch.testing.assert_close(scaled, expected, atol=1e-4, rtol=1e-4)  # 1e-6 beside the smallest deviation


@given(batch=batches(), scale=st.floats(0.5, 100))
def test_a_scale_changes_nothing_in_max_rl(batch: Batch, scale: float) -> None:
    torch.testing.assert_close(batch.scaled(scale, 0).advantages("max_rl"), batch.advantages("max_rl"))


@each(WITHOUT_BASELINE)
@given(batch=batches())
def test_without_a_baseline_the_score_is_the_reward(name: str, options: dict[str, Any], batch: Batch) -> None:
    assert batch.advantages(name, **options).tolist() == batch.rewards.nan_to_num().tolist()


@each(VARIANTS)
@pytest.mark.parametrize("large", [1e6, 1e30])
def test_large_rewards_stay_finite_in_float32(name: str, options: dict[str, Any], large: float) -> None:
    batch = batch_of([large, -large, 0.0, large, 1.0])
    single = Batch(batch.rewards.float(), batch.groups, batch.lengths, batch.greedy_rewards.float())
    advantages = single.advantages(name, **options)
    assert advantages.isfinite().all() and advantages.dtype == torch.float32
    torch.testing.assert_close(advantages, batch.advantages(name, **options).float())


@each(VARIANTS)
def test_an_empty_batch_has_no_advantages(name: str, options: dict[str, Any]) -> None:
    assert batch_of([], []).advantages(name, **options).shape == (0,)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_entries_say_what_they_are(name: str) -> None:
    entry = ESTIMATORS[name]
    assert entry.name == name and entry.idea.endswith(".") and entry.source
    critic, whitened = name == "gae", name.startswith("reinforce_pp")
    assert entry.tokens == ("gae" if critic else "whitened_returns" if whitened else "returns")


def test_inputs_are_tensors_and_options_have_defaults() -> None:
    assert ESTIMATORS["opo"].inputs == ("lengths",) and ESTIMATORS["opo"].options == {}
    assert ESTIMATORS["remax"].inputs == ("greedy_rewards",)
    assert ESTIMATORS["gigpo"].inputs == ("episodes", "steps", "step_rewards", "states")
    assert ESTIMATORS["opmd"].options == {"baseline": "mean", "tau": 1.0}


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="there is a group advantage 'grpo' already"):
        estimator("grpo", source="nowhere", tokens="returns")(lambda rewards, groups: rewards)


def test_unknown_names_options_and_shapes_are_refused() -> None:
    zeros, groups = torch.zeros(2), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"no group advantage 'gropo'; did you mean 'grpo'\? there are dr_grpo"):
        group_advantages("gropo", zeros, groups)
    with pytest.raises(TypeError, match=r"'opmd' has no option 'tua'; did you mean 'tau'\? there are baseline, tau"):
        group_advantages("opmd", zeros, groups, tua=1.0)
    with pytest.raises(TypeError, match="'grpo' has no option 'lengths'; there are none"):
        group_advantages("grpo", zeros, groups, lengths=zeros)
    with pytest.raises(TypeError, match=r"'opo' needs lengths: a tensor \(N,\) each"):
        group_advantages("opo", zeros, groups)
    with pytest.raises(ValueError, match=r"rewards \(2,\) and groups \(3,\)"):
        group_advantages("grpo", zeros, torch.zeros(3))
    with pytest.raises(ValueError, match=r"rewards \(2,\) and lengths \(2, 1\)"):
        group_advantages("opo", zeros, groups, lengths=torch.ones(2, 1))
    with pytest.raises(ValueError, match="no baseline 'median'; there are mean, log_mean_exp"):
        group_advantages("opmd", zeros, groups, baseline="median")
    with pytest.raises(ValueError, match="tau is 0, it must be positive"):
        group_advantages("opmd", zeros, groups, tau=0)
