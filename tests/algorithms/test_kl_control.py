from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from rlcore.algorithms.kl_control import AdaptiveKL, FixedKL


@pytest.mark.parametrize(
    ("kl", "expected"),
    [
        (0.1, 0.5),  # on target
        (0.11, 0.5 * (1 + 0.1 * 256 / 1024)),  # 10 % above: β grows by 0.1·256/1024
        (0.09, 0.5 * (1 - 0.1 * 256 / 1024)),
        (5.0, 0.5 * (1 + 0.2 * 256 / 1024)),  # the error is clipped to 0.2
        (-3.0, 0.5 * (1 - 0.2 * 256 / 1024)),
    ],
)
def test_adaptive_by_hand(kl: float, expected: float) -> None:
    controller = AdaptiveKL(coef=0.5, target=0.1, horizon=1024)
    controller.update(kl, n=256)
    assert controller.coef == pytest.approx(expected)


@given(coef=st.floats(1e-4, 10), kls=st.lists(st.floats(-100, 100), max_size=50), n=st.integers(1, 64))
def test_adaptive_stays_positive_and_moves_towards_its_target(coef: float, kls: list[float], n: int) -> None:
    controller = AdaptiveKL(coef, target=0.5, horizon=64)
    for kl in kls:
        before = controller.coef
        controller.update(kl, n)
        assert controller.coef > 0
        assert (controller.coef >= before) if kl >= 0.5 else (controller.coef <= before)


def test_adaptive_goes_on_from_its_state() -> None:
    controller, resumed = AdaptiveKL(0.5, 0.1, 1000), AdaptiveKL(0.5, 0.1, 1000)
    controller.update(1.0, 100)
    resumed.load_state_dict(controller.state_dict())
    for each in (controller, resumed):
        each.update(0.0, 50)
    assert resumed.coef == controller.coef == pytest.approx(0.5 * 1.02 * 0.99)


def test_fixed_stays() -> None:
    controller = FixedKL(0.3)
    controller.update(100.0, 64)
    controller.load_state_dict(controller.state_dict())
    assert controller.coef == 0.3


def test_what_would_break_the_coefficient_is_refused() -> None:
    with pytest.raises(ValueError, match="target and horizon must be positive"):
        AdaptiveKL(0.1, target=0.0, horizon=10)
    controller = AdaptiveKL(0.1, target=0.1, horizon=10)
    with pytest.raises(ValueError, match="horizon of the KL coefficient is 10 responses, less than a batch of 11"):
        controller.update(0.1, 11)
    with pytest.raises(ValueError, match="the KL of the batch is nan"):
        controller.update(math.nan, 5)
    assert controller.coef == 0.1
