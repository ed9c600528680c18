"""Whether the algorithms that a configuration names exist, take the options it gives them, and have what they need.

As a program: a pickled AlgorithmConfig on stdin, the problems as JSON on stdout.
"""

from __future__ import annotations

import json
import pickle
import sys

import torch

from rlcore.algorithms import LossInputs, group_advantages, policy_loss
from rlcore.algorithms.advantages import ESTIMATORS
from rlcore.algorithms.losses import LOSSES
from rlcore.config import AlgorithmConfig

PROVIDED = ("greedy_rewards", "lengths")
"""Tensors beside rewards and groups that an iteration has for an advantage estimator."""

CLIPS = {"clip_low": "pg_clip_low", "clip_high": "pg_clip_high", "dual_clip": "dual_clip"}
"""Options of losses that have a key of their own."""


CORRECTED = ("topr", "decoupled_ppo")
"""Losses that correct for the engine's policy on their own."""

UNSIGNED = ("reinforce", "reinforce_pp", "gae")
"""Estimators whose score is the reward itself."""

Problem = tuple[str, str]
"""The key under `algorithm`, and what is wrong with its value."""


def problems(config: AlgorithmConfig) -> list[Problem]:
    """What cannot be used; empty if all can."""
    return [*_loss_problems(config), *_estimator_problems(config)]


def _loss_problems(config: AlgorithmConfig) -> list[Problem]:
    try:
        known = LOSSES.find(config.policy_loss).options
    except ValueError as error:
        return [("policy_loss", str(error))]
    found = [
        (f"policy_loss_options.{name}", f"is the key algorithm.{CLIPS[name]}")
        for name in config.policy_loss_options
        if name in CLIPS
    ]
    found += [
        (key, f"the policy loss {config.policy_loss} has no {name}; leave it out, or set it to null")
        for name, key in CLIPS.items()
        if name in config.loss_options and name not in known
    ]
    if found:
        return found
    token = torch.zeros(1, 1)
    inputs = LossInputs(token, token, token, token + 1, token, token[0], token)
    try:
        policy_loss(config.policy_loss, inputs, **config.loss_options)
    except (TypeError, ValueError) as error:
        return [("policy_loss_options", str(error))]
    if config.policy_loss in CORRECTED and config.rollout_correction is not None:
        return [("rollout_correction", f"{config.policy_loss} weighs by π/μ itself: twice would be too much")]
    unsigned = config.adv_estimator in UNSIGNED and config.shaping.norm_mean_type == "none"
    if config.policy_loss == "topr" and unsigned:
        signed = "set shaping.norm_mean_type, or an estimator with a baseline such as dr_grpo"
        return [("policy_loss", f"topr tells good responses by the sign of their score; {signed}")]
    approximated = config.loss_options.get("approximate_old") is not None
    if config.policy_loss == "decoupled_ppo" and config.old_logprobs == "rollout" and not approximated:
        apart = "decoupled_ppo tells the policy before the update from the one that sampled"
        return [("old_logprobs", f"{apart}: set recompute, or policy_loss_options.approximate_old")]
    return []


def _estimator_problems(config: AlgorithmConfig) -> list[Problem]:
    try:
        needed = ESTIMATORS.find(config.adv_estimator).inputs
    except ValueError as error:
        return [("adv_estimator", str(error))]
    if missing := sorted(set(needed) - set(PROVIDED)):
        needs = f"{config.adv_estimator} needs {', '.join(missing)}, which responses of one turn do not have"
        return [("adv_estimator", needs)]
    inputs = {name: torch.ones(2) for name in needed}
    try:
        group = torch.zeros(2, dtype=torch.int64)
        group_advantages(config.adv_estimator, torch.ones(2), group, **inputs, **config.adv_estimator_options)
    except (TypeError, ValueError) as error:
        return [("adv_estimator_options", str(error))]
    return []


if __name__ == "__main__":
    print(json.dumps(problems(pickle.load(sys.stdin.buffer))))
