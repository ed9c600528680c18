"""Every preset trains, and every setting in it is read: another value gives other numbers or another plan."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
import torch

from rlcore.batches import GRADE, GREEDY, RolloutBatch, TrainBatch, validate
from rlcore.catalogue import PRESETS, settings
from rlcore.compose import compose
from rlcore.config import Config
from rlcore.plan import plan_iteration
from rlcore.train_batch import assemble_train_batch
from rlcore.trainer.microbatches import collate
from rlcore.trainer.minibatches import optimizer_steps
from rlcore.trainer.objective import Totals, objective, with_selection
from rlcore.trainer.packing import RowLengths, grow_trees
from tests.rollout_rows import PROMPT_AND_GRADE

FLOATS = pl.List(pl.Float32)
NAMES = sorted(path.stem for path in PRESETS.glob("*.yaml"))
REWARDS = (1.0, 0.0, 0.5, 1.0, 1.0, 0.0, 0.0, 0.0, 0.5, 1.0)
"""Of two groups of four responses, and of the greedy response to each prompt."""
LENGTHS = (3, 5, 8, 30, 2, 2, 7, 4, 3, 3)
FLIPPED: dict[str, Any] = {
    "adv_estimator": "max_rl",
    "policy_loss": "sapo",
    "pg_clip_low": 0.05,
    "pg_clip_high": 0.05,
    "dual_clip": 1.01,
    "loss_agg_mode": "seq-mean-token-sum",
    "old_logprobs": None,
    "gamma": 0.5,
    "lambd": 0.5,
    "whiten_advantages": False,
    "init_kl_coef": 0.5,
    "kl_penalty": "k3",
    "kl_loss_coef": 0.5,
    "kl_loss_type": "k2",
    "mini_batches": 3,
    "masks": {"group_std_above": 0.49},
    "shaping": {"overlong": {"buffer_length": 16}},
}
"""Another value of every setting that a preset has; of old_logprobs, the one it does not have."""


def rollouts() -> pl.DataFrame:
    names = [f"p{row // 4}#{row % 4}" for row in range(8)] + [f"p0{GREEDY}", f"p1{GREEDY}"]
    generator = torch.Generator().manual_seed(0)
    logprobs = [(-torch.rand(length, generator=generator) - 0.1).tolist() for length in LENGTHS]
    frame = pl.DataFrame(
        {
            "sample_id": names,
            "prompt_id": [name.split("#")[0] for name in names],
            "domain": "arithmetic",
            **PROMPT_AND_GRADE,
            "prompt_ids": [[1, 2]] * 10,
            "response_ids": [[7] * length for length in LENGTHS],
            "loss_mask": [[GREEDY not in name] * length for name, length in zip(names, LENGTHS, strict=True)],
            "rollout_logprobs": logprobs,
            "policy_versions": [[0] * length for length in LENGTHS],
            "finish_reason": "stop",
            "response_text": "x",
            "seconds": 0.1,
        },
        schema_overrides={
            "grade": pl.Struct(GRADE),
            "prompt_ids": pl.List(pl.Int32),
            "response_ids": pl.List(pl.Int32),
            "rollout_logprobs": FLOATS,
            "policy_versions": pl.List(pl.Int32),
        },
    )
    return validate(frame, RolloutBatch)


ROLLOUTS = rollouts()


def per_token(seed: int, name: str = "logprobs") -> pl.DataFrame:
    """Numbers like the rollouts' log-probabilities, a little apart from them."""
    generator = torch.Generator().manual_seed(seed)
    noise = [(0.3 * torch.randn(length, generator=generator)).tolist() for length in LENGTHS]
    apart = ROLLOUTS["rollout_logprobs"] + pl.Series(noise, dtype=FLOATS)
    return ROLLOUTS.select("sample_id").with_columns(apart.alias(name))


def numbers(config: Config) -> list[Any]:
    """Plan, schedule and batch of an iteration under a configuration, and the gradient of its first objective."""
    stages = plan_iteration(config, 1).stages
    batch = assemble_train_batch(
        config,
        1,
        ROLLOUTS,
        ROLLOUTS.select("sample_id", reward=pl.Series(REWARDS)),
        per_token(1) if "old_logprob" in stages else None,
        per_token(2) if "ref_logprob" in stages else None,
        per_token(3, "values") if "values" in stages else None,
        None,
    )
    validate(batch, TrainBatch)
    algorithm = config.algorithm
    rows = [row for row, trains in enumerate(batch["loss_mask"].list.any()) if trains]
    schedule = optimizer_steps(rows, epochs=1, mini_batches=algorithm.mini_batches, seed=0, iteration=1)
    micro = collate(batch, grow_trees(rows, RowLengths.of(batch), share_prompts=True, limit=1000))
    logprobs = micro.align(torch.cat([torch.tensor(batch["rollout_logprobs"][row]) for row in micro.rows]))
    logprobs = (
        logprobs + 0.3 * torch.randn(logprobs.shape, generator=torch.Generator().manual_seed(4))
    ).requires_grad_()
    totals = Totals.of(batch, config.rollout.response_length)
    loss, _, _ = objective(
        algorithm, with_selection(algorithm, batch, rows), micro, logprobs, torch.rand(logprobs.shape), totals
    )
    (gradient,) = torch.autograd.grad(loss, logprobs)
    assert gradient.isfinite().all() and gradient.any()
    return [stages, schedule, batch.to_dict(as_series=False), gradient.tolist()]


def preset(name: str) -> list[str]:
    return [f"algorithm={name}", "data.domain_interleave_probs={arithmetic: 1.0}"]


@pytest.mark.parametrize(
    ("name", "setting"), [(name, setting) for name in NAMES for setting in settings(PRESETS / f"{name}.yaml")]
)
def test_every_setting_of_a_preset_changes_what_is_computed(name: str, setting: str) -> None:
    config = compose("arithmetic", preset(name))
    value = FLIPPED[setting]
    if config.algorithm.policy_loss == "gspo" and setting.startswith("pg_clip"):
        value = 1.0  # Its own range is narrower than any ratio here.
    if setting == "old_logprobs":
        value = "rollout" if config.algorithm.old_logprobs == "recompute" else "recompute"
    changed = config.algorithm.model_dump() | {setting: value}
    if setting in ("adv_estimator", "policy_loss"):
        # Clips are the old loss's own.
        changed |= {"pg_clip_low": None, "pg_clip_high": None, "dual_clip": None}
    if setting == "policy_loss" and config.algorithm.policy_loss == "decoupled_ppo":
        changed["old_logprobs"] = "recompute"
    other = Config.model_validate(config.model_dump() | {"algorithm": changed})
    assert numbers(other) != numbers(config)
