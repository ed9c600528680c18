"""Which stages an iteration needs."""

from __future__ import annotations

import pytest

from rlcore.compose import compose
from rlcore.plan import INPUTS, is_due, plan_iteration


def test_a_stage_whose_output_nobody_reads_is_not_planned() -> None:
    plan = plan_iteration(compose("arithmetic", ["eval_steps=5", "save_steps=10"]), 1)
    assert plan.stages == ("sample", "generate", "reward", "advantage", "update", "sync")


def test_the_reference_is_planned_where_kl_is_used() -> None:
    plan = plan_iteration(compose("arithmetic", ["algorithm.kl_loss_coef=0.01"]), 1)
    assert plan.inputs["advantage"] == ("generate", "reward", "ref_logprob")


def test_old_logprobs_are_planned_where_they_are_recomputed() -> None:
    plan = plan_iteration(compose("arithmetic", ["algorithm.old_logprobs=recompute"]), 1)
    assert plan.inputs["advantage"] == ("generate", "reward", "old_logprob")


def test_values_are_planned_where_the_advantages_need_a_critic() -> None:
    plan = plan_iteration(compose("arithmetic", ["algorithm.adv_estimator=gae"]), 1)
    assert plan.inputs["values"] == ("generate",)
    assert plan.inputs["advantage"] == ("generate", "reward", "values")


@pytest.mark.parametrize("every, due", [(5, [5, 10, 12]), (0, []), (1, list(range(1, 13)))])
def test_periodic_stages_are_due_every_so_often_and_at_the_end(every: int, due: list[int]) -> None:
    assert [iteration for iteration in range(1, 13) if is_due(every, iteration, last=12)] == due


def test_a_checkpoint_ends_a_run_even_if_none_is_periodic() -> None:
    config = compose("arithmetic", ["save_steps=0", "iterations=3"])
    assert "checkpoint" not in plan_iteration(config, 2)
    assert "checkpoint" in plan_iteration(config, 3)


def test_every_stage_reads_only_stages_before_it() -> None:
    seen: set[str] = set()
    for stage, reads in INPUTS.items():
        assert seen.issuperset(reads), stage
        seen.add(stage)
