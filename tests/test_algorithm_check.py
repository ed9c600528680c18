"""What a configuration names must exist, take its options, and have what it needs."""

from __future__ import annotations

import pytest

from rlcore.algorithm_check import problems
from rlcore.algorithms.advantages import ESTIMATORS
from rlcore.algorithms.losses import LOSSES
from rlcore.compose import compose
from rlcore.config import AlgorithmConfig
from rlcore.config_errors import ConfigError


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_every_loss_can_be_configured_with_its_own_defaults(name: str) -> None:
    options = {key: value for key, value in LOSSES[name].options.items() if "clip" not in key}
    config = AlgorithmConfig(policy_loss=name, policy_loss_options=options, old_logprobs="recompute")
    assert problems(config) == []


@pytest.mark.parametrize("name", sorted(set(ESTIMATORS) - {"gigpo"}))
def test_every_estimator_of_whole_responses_can_be_configured(name: str) -> None:
    config = AlgorithmConfig(adv_estimator=name, adv_estimator_options=ESTIMATORS[name].options)
    assert problems(config) == []


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["algorithm.policy_loss=gsop"],
            r"algorithm.policy_loss \(override .*gsop\): no policy loss 'gsop'; did you mean",
        ),
        (["algorithm.adv_estimator=gropo"], r"algorithm.adv_estimator .*'gropo'.*did you mean 'grpo'"),
        (
            ["algorithm.policy_loss_options={tua: 1}", "algorithm.policy_loss=opmd"],
            "no option 'tua'; did you mean",
        ),
        (
            ["algorithm.policy_loss_options={clip_low: 1}"],
            r"clip_low \(over.*\): is the key algorithm.pg_clip_low",
        ),
        (["algorithm.policy_loss=opmd", "algorithm.pg_clip_low=0.1"], "the policy loss opmd has no clip_low"),
        (["algorithm.pg_clip_low=2.0"], r"clip_low"),
        (["algorithm.adv_estimator=gigpo"], "gigpo needs episodes, .* one turn do not have"),
        (["algorithm.adv_estimator_options={tau: 1}"], "no option 'tau'"),
        (["algorithm=decoupled_ppo", "algorithm.old_logprobs=rollout"], "set recompute"),
        (["algorithm.rollout_correction={}"], "set old_logprobs=recompute"),
        (["algorithm=decoupled_ppo", "algorithm.rollout_correction={}"], "decoupled_ppo weighs by π/μ itself"),
        (["algorithm=topr", "algorithm.adv_estimator=reinforce"], "topr tells good responses by the sign"),
        (["algorithm.target_kl=0.1"], "set init_kl_coef"),
        (
            ["algorithm=reinforce", "algorithm.target_kl=0.1", "algorithm.kl_horizon=10"],
            "10 responses, less .* 128",
        ),
        (["algorithm=remax", "algorithm.shaping.norm_mean_type=group"], "remax compares .* cannot be normalised"),
        (["algorithm=dapo", "algorithm.shaping.overlong.buffer_length=33"], "buffer_length of domain arithmetic is 33"),
        (["algorithm.masks.difficulty={low: 1}"], "low 1 must be below high 0.95"),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_would_be_right(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose("arithmetic", overrides)


def test_decoupled_ppo_may_approximate_the_old_policy_instead() -> None:
    overrides = ["algorithm=decoupled_ppo", "algorithm.old_logprobs=rollout"]
    settings = compose("arithmetic", [*overrides, "algorithm.policy_loss_options={approximate_old: 0.5}"]).algorithm
    assert settings.loss_options["approximate_old"] == 0.5
