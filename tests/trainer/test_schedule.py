"""The learning rate of each update, and what else is put into the parameter groups."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from rlcore.compose import compose
from rlcore.config_errors import ConfigError
from rlcore.trainer.schedule import Schedule
from rlcore.trainer.settings import OptimizerSettings


def optimizer() -> torch.optim.AdamW:
    """Groups as Megatron makes them: matrices, and what does not decay."""
    matrices, norms = torch.zeros(2, 2, requires_grad=True), torch.zeros(2, requires_grad=True)
    megatron: dict[str, Any] = {"default_config": True, "max_lr": 7.0, "min_lr": None}
    return torch.optim.AdamW(
        [{"params": [matrices], "wd_mult": 1.0, **megatron}, {"params": [norms], "wd_mult": 0.0, **megatron}]
    )


def rates(updates: int, idle: int = 0, **settings: Any) -> list[float]:
    schedule = Schedule(OptimizerSettings(learning_rate=1.0, **settings), optimizer(), idle)
    return [schedule.apply(applied) for applied in range(updates)]


def test_a_constant_rate_is_the_learning_rate_after_its_warm_up() -> None:
    assert rates(3) == [1.0, 1.0, 1.0]
    assert rates(5, warmup_steps=3) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


def test_a_linear_rate_falls_from_the_learning_rate_to_min_lr_and_stays() -> None:
    assert rates(6, lr_scheduler_type="linear", lr_decay_steps=4) == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0, 0.0])
    falling = rates(7, lr_scheduler_type="linear", lr_decay_steps=5, warmup_steps=1, min_lr=0.2)
    assert falling == pytest.approx([0.5, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2])


def test_a_cosine_rate_falls_along_half_a_cosine() -> None:
    expected = [0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * place / 8)) for place in range(8)]
    found = rates(12, lr_scheduler_type="cosine", lr_decay_steps=10, warmup_ratio=0.11, min_lr=0.1)
    assert found == pytest.approx([1 / 3, 2 / 3, *expected, 0.1, 0.1])


def test_the_schedule_starts_after_the_updates_in_which_nothing_trains() -> None:
    found = rates(6, idle=2, lr_scheduler_type="linear", lr_decay_steps=6, warmup_steps=1)
    assert found[2:] == pytest.approx([0.5, 1.0, 2 / 3, 1 / 3])


def test_the_rate_depends_on_the_place_alone() -> None:
    settings = OptimizerSettings(lr_scheduler_type="cosine", lr_decay_steps=9, warmup_steps=2)
    steady, jumping = Schedule(settings, optimizer()), Schedule(settings, optimizer())
    assert {place: jumping.apply(place) for place in (7, 0, 3, 8, 1)} == {
        place: steady.apply(place) for place in (0, 1, 3, 7, 8)
    }


def test_the_configurations_numbers_replace_those_that_a_checkpoint_brought() -> None:
    loaded = optimizer()
    for group in loaded.param_groups:
        group |= {"lr": 7.0, "max_lr": 7.0, "min_lr": 7.0, "weight_decay": 7.0, "betas": (0.7, 0.7)}
    settings = OptimizerSettings(learning_rate=0.5, weight_decay=0.1, adam_beta1=0.8)
    assert Schedule(settings, loaded).apply(0) == 0.5
    matrices, norms = loaded.param_groups
    assert (matrices["lr"], matrices["weight_decay"], matrices["betas"]) == (0.5, 0.1, (0.8, 0.999))
    assert (norms["lr"], norms["weight_decay"]) == (0.5, 0.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"warmup_steps": 2, "warmup_ratio": 0.1}, "two ways to say one thing"),
        ({"min_lr": 1e-7}, "set lr_scheduler_type to linear or cosine"),
        ({"lr_scheduler_type": "linear", "min_lr": 1e-3}, "min_lr 0.001 is above learning_rate 1e-06"),
        ({"lr_decay_steps": 10}, "the length of linear, cosine and warmup_ratio"),
        ({"warmup_ratio": 1.0}, "less than 1"),
        ({"lr_scheduler_type": "wsd"}, "'constant', 'linear' or 'cosine'"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        OptimizerSettings(**settings)


def test_the_length_is_that_of_the_run_and_is_written_down() -> None:
    assert compose("arithmetic", ["trainer.lr_scheduler_type=cosine"]).trainer.lr_decay_steps == 30
    assert compose("arithmetic", ["trainer.warmup_ratio=0.1", "iterations=50"]).trainer.lr_decay_steps == 50
    assert compose("arithmetic", ["trainer.warmup_steps=3"]).trainer.lr_decay_steps is None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["trainer.warmup_steps=30", "trainer.lr_scheduler_type=linear"], "warm-up of 30 iterations is not shorter"),
        (
            [
                "algorithm=ppo",
                "critic.warmup_iterations=25",
                "trainer.warmup_steps=5",
                "trainer.lr_scheduler_type=linear",
            ],
            r"lr_decay_steps is 30 .*, 25 of them critic\.warmup_iterations",
        ),
        (["critic.min_lr=1e-7"], r"set trainer\.lr_scheduler_type"),
        (["critic.min_lr=1e-2", "trainer.lr_scheduler_type=linear"], r"critic\.min_lr 0\.01 is above"),
    ],
)
def test_a_schedule_that_does_not_fit_the_run_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose("arithmetic", overrides)
