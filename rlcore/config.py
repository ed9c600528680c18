"""The whole configuration of a run, as strict pydantic models.

Importable without torch, Ray or Prefect. Names follow ROLL where ROLL has one for the thing.
`rlcore/compose.py` makes a `Config` from YAML files and overrides.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from rlcore.data.settings import DataConfig
from rlcore.deadlines import Deadlines
from rlcore.section import NonNegative, Positive, Probability, Section
from rlcore.shaping.settings import MaskConfig, RewardConfig, ShapingConfig, keeps_state
from rlcore.trainer.layout import Layout
from rlcore.trainer.settings import OptimizerSettings


class ModelConfig(Section):
    """The model that is trained, sampled from, and (as it was at the start) the KL reference."""

    path: str
    """A Hugging Face model directory: config.json, safetensors, tokenizer with chat template."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Compute precision of engine and trainer. The optimizer's weights are always float32."""


class FilterConfig(Section):
    """Groups that are not trained on, but replaced by those of further prompts. Bounds are on a group's rewards."""

    min_mean: float | None = None
    max_mean: float | None = None
    min_std: NonNegative = 0.0
    function: str | None = None
    """`package.module:function` of yours: called with the domain and the rewards of a group; true keeps it."""
    max_rejected_prompts: Positive = 64
    """For one batch, and one domain where domains have quotas. One more, and the stage fails."""

    @model_validator(mode="after")
    def _rejects_something(self) -> FilterConfig:
        if self.min_mean is None and self.max_mean is None and not self.min_std and self.function is None:
            raise ValueError("set min_mean, max_mean, min_std or function; without any of them nothing is rejected")
        if self.min_mean is not None and self.max_mean is not None and self.min_mean > self.max_mean:
            raise ValueError(f"min_mean {self.min_mean:g} is above max_mean {self.max_mean:g}")
        return self


class RolloutConfig(Section):
    """What is sampled in one iteration, and from which distribution."""

    rollout_batch_size: Positive
    """Prompts per iteration."""
    num_return_sequences_in_group: Positive
    """Responses per prompt."""
    response_length: Positive
    """Most tokens in one response."""
    temperature: Annotated[float, Field(gt=0.0)] = 1.0
    """Both sides' log-probabilities are of the distribution at this temperature."""
    async_ratio: NonNegative = 0.0
    """α: batches that are generated ahead while the trainer works, fractions allowed. 0: none. No response is trained
    on that was started more than ⌈α⌉ policy versions before."""
    interrupted: Literal["continue", "restart"] = "continue"
    """What becomes of responses under way when the weights change: they go on under the new ones, or start again."""
    extra_prompts: Annotated[int, Field(ge=0)] = 0
    """Prompts in flight beyond those a batch needs: it is complete as soon as enough of all are."""
    filter: FilterConfig | None = None
    domain_quotas: bool = False
    """Every batch has its share of each domain (data.domain_interleave_probs) exactly, whatever the filter rejects."""


KLKind = Literal["k1", "abs", "k2", "k3", "k1+", "abs+", "k3+"]
Option = bool | int | float | str | None


class RolloutCorrectionConfig(Section):
    """Weights π_old/μ for the token losses: the trainer's policy before the update against the engine's."""

    level: Literal["token", "geometric", "sequence"] = "token"
    mode: Literal["truncate", "mask"] = "truncate"
    low: NonNegative = 0.5
    """Lower bound of `mask`."""
    high: Annotated[float, Field(gt=0.0)] = 2.0


class AlgorithmConfig(Section):
    """Advantage estimator, policy loss, and regularisation. `rlvr algorithms` lists the names and their options."""

    adv_estimator: str = "grpo"
    """gae: the critic and its stage exist. remax: every prompt has a greedy response too."""
    adv_estimator_options: dict[str, Option] = Field(default_factory=dict)
    policy_loss: str = "ppo"
    policy_loss_options: dict[str, Option] = Field(default_factory=dict)
    """Those of the loss that have no key of their own here."""
    pg_clip_low: NonNegative | None = None
    """The loss's clip_low. Null: what the loss itself takes."""
    pg_clip_high: NonNegative | None = None
    dual_clip: Annotated[float, Field(gt=1.0)] | None = None
    loss_agg_mode: Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"] = (
        "token-mean"
    )
    old_logprobs: Literal["rollout", "recompute"] = "rollout"
    """Denominator of the ratio: the engine's log-probabilities, or the trainer's before the update."""
    rollout_correction: RolloutCorrectionConfig | None = None
    gamma: Probability = 1.0
    """Discount of the token rewards; the response's own score is the reward of its last token."""
    lambd: Probability = 0.95
    """λ of generalised advantage estimation: 1 trusts the rewards alone, 0 the critic's next value."""
    whiten_advantages: bool = False
    """Zero mean and unit variance over the tokens of the batch."""
    advantage_clip: Annotated[float, Field(gt=0.0)] | None = None
    """Largest |advantage| of a token, after whitening."""
    init_kl_coef: NonNegative = 0.0
    """KL penalty in the token rewards. Not 0: the reference model and its stage exist."""
    kl_penalty: KLKind = "k1"
    target_kl: Annotated[float, Field(gt=0.0)] | None = None
    """Mean KL of a token that the penalty's coefficient is steered to, once an iteration. Null: it stays."""
    kl_horizon: Positive = 10000
    """Responses in which the coefficient changes by a fifth at most."""
    kl_loss_coef: NonNegative = 0.0
    """KL penalty in the loss. Not 0: the reference model and its stage exist."""
    kl_loss_type: KLKind = "k3"
    entropy_loss_coef: NonNegative = 0.0
    difficulty_loss_weight: bool = False
    """Responses to prompts that are mostly failed weigh more in the loss."""
    length_loss_weight: bool = False
    """Long responses weigh less in the loss."""
    shaping: ShapingConfig = ShapingConfig()
    """Of the rewards of every domain that has none of its own (rewards.DOMAIN.shaping)."""
    masks: MaskConfig = MaskConfig()
    ppo_epochs: Positive = 1
    """How often an update goes through one iteration's batch."""
    mini_batches: Positive = 1
    """Optimizer steps of one epoch, the critic's too: each trains on its part of the responses."""

    @model_validator(mode="after")
    def _every_setting_is_read(self) -> AlgorithmConfig:
        if self.target_kl is not None and self.init_kl_coef == 0:
            raise ValueError("target_kl steers the KL penalty in the rewards: set init_kl_coef, where it starts")
        if self.rollout_correction is not None and self.old_logprobs == "rollout":
            raise ValueError("rollout_correction compares π_old with the engine's: set old_logprobs=recompute")
        return self

    @property
    def uses_reference(self) -> bool:
        return self.init_kl_coef > 0 or self.kl_loss_coef > 0

    @property
    def uses_critic(self) -> bool:
        return self.adv_estimator == "gae"

    @property
    def uses_greedy_baseline(self) -> bool:
        return self.adv_estimator == "remax"

    @property
    def loss_options(self) -> dict[str, Option]:
        """All options of the policy loss that are set."""
        clips = {"clip_low": self.pg_clip_low, "clip_high": self.pg_clip_high, "dual_clip": self.dual_clip}
        return {name: value for name, value in clips.items() if value is not None} | self.policy_loss_options


class CriticConfig(Section):
    """The critic, where the advantages need one. What is not here it shares with the policy's trainer."""

    path: str | None = None
    """A Hugging Face model directory with the policy's tokenizer, whose model gets a value head. Null: the policy's."""
    learning_rate: Annotated[float, Field(gt=0.0)] = 1e-5
    min_lr: NonNegative = 0.0
    """Where its rate ends, under the trainer's lr_scheduler_type."""
    max_grad_norm: Annotated[float, Field(gt=0.0)] = 1.0
    value_clip: Annotated[float, Field(gt=0.0)] | None = 0.2
    """How far from the batch's value the loss rewards a value to move. Null: as far as it will."""
    epochs: Positive = 1
    """How often an update goes through one iteration's batch."""
    warmup_iterations: Annotated[int, Field(ge=0)] = 0
    """In the first so many iterations only the critic trains."""


class TrainerConfig(Layout, OptimizerSettings):
    """The Megatron-Core trainer."""

    max_tokens_per_micro_batch: Positive = 4096
    """Token budget of one forward and backward pass."""
    share_prompts: bool = True
    """Train the responses to a prompt in one sequence after it, each seeing the prompt and itself."""
    recompute: Literal["none", "selective", "full"] = "none"
    """Activations that the backward pass computes again instead of keeping: attention weights, or whole layers."""
    reshardable_checkpoints: bool = False
    """Save so that any layout can load it, also where every rank holds the whole model: in more time and memory."""
    offload: bool = False
    """Keep weights and optimizer in host memory while the engine generates: for a GPU that both share."""


class HardwareConfig(Section):
    """What of this machine each process may use."""

    trainer_threads: Positive
    engines: Positive = 1
    """Inference engines, each with all of the settings below."""
    engine_threads: Positive
    reward_processes: Positive = 2
    kv_cache_gib: Annotated[float, Field(gt=0.0)] = 1.0
    max_num_seqs: Positive = 256
    """Requests that the engine decodes at once."""
    trainer_gpus: Annotated[float, Field(ge=0.0)] = 0.0
    """GPUs that Ray reserves for each trainer rank, reference and critic included. Fractions share one."""
    engine_gpus: Annotated[float, Field(ge=0.0)] = 0.0

    @property
    def engines_share_gpu(self) -> bool:
        return 0.0 < self.engine_gpus < 1.0


class SyncConfig(Section):
    """The check that the engine holds the trainer's weights."""

    probe_tolerance: Annotated[float, Field(gt=0.0)] = 0.1
    """Largest mean |engine − trainer| log-probability on the probe prompt that passes."""


class TrackingConfig(Section):
    """Where metrics go beside metrics.jsonl."""

    tensorboard: bool = True
    wandb: Literal["off", "offline", "online"] = "offline"
    wandb_project: str = "rlvr"

    @field_validator("wandb", mode="before")
    @classmethod
    def _off_without_quotes(cls, value: Any) -> Any:
        """YAML reads a bare `off` as false."""
        return "off" if value is False else value


class Config(Section):
    """One run, whole."""

    run: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """Name of the run: the directory under runs_dir. Letters, digits, dot, dash and underscore."""
    runs_dir: str = "runs"
    """A path or fsspec URL."""
    seed: Annotated[int, Field(ge=0)] = 0
    iterations: Positive
    eval_steps: Annotated[int, Field(ge=0)] = 5
    """Evaluate on the held-out prompts every so many iterations and at the end. 0: never."""
    save_steps: Annotated[int, Field(ge=0)] = 10
    """Checkpoint every so many iterations and at the end. 0: only at the end."""
    save_total_limit: Positive = 2
    """Newest checkpoints that are kept."""
    save_best: str | None = "eval/accuracy"
    """Held-out accuracy, of all prompts or of a domain (eval/DOMAIN/accuracy), whose best checkpoint is kept beside
    the newest; among those of iterations that were evaluated. Null: the newest only."""
    model: ModelConfig
    data: DataConfig
    rollout: RolloutConfig
    rewards: dict[str, RewardConfig]
    """Domain to how it is graded."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    critic: CriticConfig = CriticConfig()
    trainer: TrainerConfig = TrainerConfig()
    hardware: HardwareConfig
    sync: SyncConfig = SyncConfig()
    tracking: TrackingConfig = TrackingConfig()
    deadlines: Deadlines = Deadlines()

    @model_validator(mode="after")
    def _schedules_fit_the_run(self) -> Config:
        """The schedule's length is fixed here: a run that goes on for longer must not change the rates it has had."""
        trainer, critic = self.trainer, self.critic
        if trainer.has_length and trainer.lr_decay_steps is None:
            trainer = trainer.model_copy(update={"lr_decay_steps": self.iterations})
        if critic.min_lr and trainer.lr_scheduler_type == "constant":
            raise ValueError("critic.min_lr is where a rate that falls ends: set trainer.lr_scheduler_type")
        if critic.min_lr > critic.learning_rate:
            raise ValueError(f"critic.min_lr {critic.min_lr:g} is above critic.learning_rate {critic.learning_rate:g}")
        trainer.schedule_steps(idle=self.critic_only_iterations)
        return self.model_copy(update={"trainer": trainer})

    @model_validator(mode="after")
    def _every_domain_has_a_grader(self) -> Config:
        missing = sorted(set(self.data.domain_interleave_probs) - set(self.rewards))
        if missing:
            there = ", ".join(sorted(self.rewards))
            raise ValueError(f"no grader for domain {', '.join(missing)}: add it under rewards (there: {there})")
        return self

    @model_validator(mode="after")
    def _shaping_fits_the_rollouts(self) -> Config:
        longest, algorithm = self.rollout.response_length, self.algorithm
        for domain, shaping in self.shaping.items():
            if shaping.overlong is not None and shaping.overlong.buffer_length > longest:
                raise ValueError(
                    f"overlong.buffer_length of domain {domain} is {shaping.overlong.buffer_length}, but "
                    f"rollout.response_length only {longest}: the penalty would start below 0 tokens"
                )
            if algorithm.uses_greedy_baseline and (shaping.norm_mean_type, shaping.norm_std_type) != ("none", "none"):
                raise ValueError(
                    f"remax compares rewards with a greedy response's, so they cannot be normalised (domain {domain}): "
                    "leave norm_mean_type and norm_std_type at none"
                )
        return self

    @model_validator(mode="after")
    def _kl_horizon_covers_a_batch(self) -> Config:
        responses = self.rollout.rollout_batch_size * self.rollout.num_return_sequences_in_group
        if self.algorithm.target_kl is not None and responses > self.algorithm.kl_horizon:
            raise ValueError(
                f"algorithm.kl_horizon is {self.algorithm.kl_horizon} responses, less than one iteration's {responses}"
            )
        return self

    @model_validator(mode="after")
    def _the_best_is_measured(self) -> Config:
        measured = ["eval/accuracy", *(f"eval/{domain}/accuracy" for domain in sorted(self.rewards))]
        if self.save_best is not None and self.save_best not in measured:
            raise ValueError(f"save_best: no evaluation measures {self.save_best!r}; there are: {', '.join(measured)}")
        return self

    @model_validator(mode="after")
    def _evaluation_needs_prompts(self) -> Config:
        if self.eval_steps > 0 and not self.data.holds_out:
            raise ValueError("eval_steps is not 0, but data.held_out names no file: add one, or set eval_steps=0")
        return self

    @property
    def shaping(self) -> dict[str, ShapingConfig]:
        """How rewards are shaped, by domain."""
        return {domain: reward.shaping or self.algorithm.shaping for domain, reward in self.rewards.items()}

    @property
    def keeps_state(self) -> bool:
        """Whether an iteration's numbers depend on those of the iterations before, beside the weights."""
        return self.algorithm.target_kl is not None or keeps_state(self.shaping, self.algorithm.masks)

    @property
    def critic_only_iterations(self) -> int:
        """Iterations at the start of the run in which the policy does not train."""
        return self.critic.warmup_iterations if self.algorithm.uses_critic else 0

    @property
    def engines_sleep(self) -> bool:
        """Whether the engines give back their GPU's memory while the trainer works: they share it, and wait for it."""
        return self.hardware.engines_share_gpu and self.rollout.async_ratio == 0.0

    @property
    def critic_model(self) -> ModelConfig:
        """What the critic starts from."""
        return self.model.model_copy(update={"path": self.critic.path or self.model.path})

    @property
    def run_url(self) -> str:
        return f"{self.runs_dir.rstrip('/')}/{self.run}"

    def digest(self, *fields: str) -> str:
        """sha256 of the named fields (dotted for one key of a section): what a stage reads of the configuration."""
        values: dict[str, Any] = {}
        tree = self.model_dump(mode="json")
        for field in sorted(fields):
            value: Any = tree
            for key in field.split("."):
                value = value[key]
            values[field] = value
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def model_directory(config: ModelConfig, key: str = "model.path") -> Path:
    """The model's directory, checked. `key` is what set its path.

    Raises:
        FileNotFoundError: the directory or its config.json is not there.
    """
    directory = Path(config.path).expanduser()
    if not (directory / "config.json").is_file():
        raise FileNotFoundError(
            f"{key}: {directory} is not a Hugging Face model directory (no config.json). "
            f"`make model` makes the default one; `{key}=DIR` takes any other."
        )
    return directory
