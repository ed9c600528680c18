"""What an iteration takes over from the iterations before it, beside the weights."""

from __future__ import annotations

import polars as pl

from rlcore.algorithms import AdaptiveKL, FixedKL, kl_estimate
from rlcore.batches import is_greedy
from rlcore.config import Config
from rlcore.padding import padded
from rlcore.reports import RunState
from rlcore.shaping.pipeline import shape
from rlcore.shaping.state import ShapingState


def kl_controller(config: Config, previous: RunState | None) -> FixedKL | AdaptiveKL:
    """Whose `coef` is that of the KL penalty in the rewards of the iteration after `previous`."""
    algorithm = config.algorithm
    if algorithm.target_kl is None:
        return FixedKL(algorithm.init_kl_coef)
    controller = AdaptiveKL(algorithm.init_kl_coef, algorithm.target_kl, algorithm.kl_horizon)
    if previous is not None:
        controller.load_state_dict(previous.kl_controller)
    return controller


def shaped_rewards(
    config: Config, iteration: int, responses: pl.DataFrame, rewards: pl.DataFrame, previous: RunState | None
) -> tuple[pl.DataFrame, ShapingState]:
    """`shape` under a run's configuration, from its state after the iteration before."""
    return shape(
        responses,
        rewards,
        shaping=config.shaping,
        masks=config.algorithm.masks,
        state=previous.shaping if previous else ShapingState(),
        iteration=iteration,
        response_length=config.rollout.response_length,
    )


def next_state(
    config: Config,
    iteration: int,
    rollouts: pl.DataFrame,
    rewards: pl.DataFrame,
    old_logprobs: pl.DataFrame | None,
    ref_logprobs: pl.DataFrame | None,
    previous: RunState | None,
) -> RunState:
    """The state after an iteration, from what it sampled. The same arguments give the same state.

    Args:
        rollouts, rewards, old_logprobs, ref_logprobs: as `assemble_train_batch`.
        previous: after the iteration before; None in the first.
    """
    responses = rollouts.filter(~is_greedy())
    _, shaping = shaped_rewards(config, iteration, responses, rewards, previous)
    controller = kl_controller(config, previous)
    if ref_logprobs is not None:
        # The rows of a LogprobBatch are those of the rollouts; the tokens of greedy ones are masked.
        old = rollouts["rollout_logprobs"] if old_logprobs is None else old_logprobs["logprobs"]
        mask = padded(rollouts["loss_mask"])
        kl = kl_estimate(padded(old), padded(ref_logprobs["logprobs"]), config.algorithm.kl_penalty)
        controller.update(float((kl * mask).sum() / mask.sum().clamp(min=1)), len(responses))
    return RunState(iteration=iteration, shaping=shaping, kl_controller=controller.state_dict())
