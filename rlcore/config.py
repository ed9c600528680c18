"""The whole configuration of a run, as strict pydantic models.

Importable without torch, Ray or Prefect. Names follow ROLL where ROLL has one for the thing.
`rlcore/compose.py` makes a `Config` from YAML files and overrides.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Probability = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[int, Field(gt=0)]


class Section(BaseModel):
    """A frozen group of settings that refuses unknown keys. A number where a text belongs is that text (`run=1`)."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), coerce_numbers_to_str=True)


class ModelConfig(Section):
    """The model that is trained, sampled from, and (as it was at the start) the KL reference."""

    path: str
    """A Hugging Face model directory: config.json, safetensors, tokenizer with chat template."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Compute precision of engine and trainer. The optimizer's weights are always float32."""


class DataConfig(Section):
    """Prompt datasets: JSONL files whose rows name their domain."""

    train: Annotated[list[str], Field(min_length=1)]
    held_out: list[str]
    prompt_length: Positive
    """Longest prompt, in tokens, chat template included. Longer ones are dropped and counted."""
    domain_interleave_probs: dict[str, Probability]
    """Share of each domain among the sampled prompts. Sums to 1."""

    @model_validator(mode="after")
    def _probabilities_sum_to_one(self) -> DataConfig:
        total = sum(self.domain_interleave_probs.values())
        if abs(total - 1.0) > 1e-6:
            parts = " + ".join(f"{domain} {p:g}" for domain, p in self.domain_interleave_probs.items())
            raise ValueError(f"domain_interleave_probs must sum to 1, but {parts} = {total:g}")
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


class RewardConfig(Section):
    """How the responses of one domain are graded."""

    grader: Literal["math", "reasoning_gym", "format"]
    timeout_seconds: Annotated[float, Field(gt=0.0)] = 10.0
    """Hard limit for one response; the grader process is killed at it."""


class AlgorithmConfig(Section):
    """Advantage estimator, policy loss, and regularisation."""

    adv_estimator: Literal["grpo", "reinforce"] = "grpo"
    policy_loss: Literal["ppo", "reinforce"] = "ppo"
    pg_clip_low: Annotated[float, Field(ge=0.0, le=1.0)] = 0.2
    pg_clip_high: Annotated[float, Field(ge=0.0)] = 0.2
    dual_clip: Annotated[float, Field(gt=1.0)] | None = None
    loss_agg_mode: Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"] = (
        "token-mean"
    )
    old_logprobs: Literal["rollout", "recompute"] = "rollout"
    """Denominator of the ratio: the engine's log-probabilities, or the trainer's before the update."""
    gamma: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0
    """Discount of the token rewards; the response's own score is the reward of its last token."""
    init_kl_coef: Annotated[float, Field(ge=0.0)] = 0.0
    """KL penalty in the token rewards. Not 0: the reference model and its stage exist."""
    kl_penalty: Literal["k1", "abs", "k2", "k3"] = "k1"
    kl_loss_coef: Annotated[float, Field(ge=0.0)] = 0.0
    """KL penalty in the loss. Not 0: the reference model and its stage exist."""
    kl_loss_type: Literal["k1", "abs", "k2", "k3"] = "k3"
    entropy_loss_coef: Annotated[float, Field(ge=0.0)] = 0.0
    drop_zero_variance_groups: bool = True
    """Leave groups whose responses all earned the same reward out of the update: their advantages are 0."""
    ppo_epochs: Positive = 1
    """Optimizer steps on one iteration's batch."""

    @property
    def uses_reference(self) -> bool:
        return self.init_kl_coef > 0 or self.kl_loss_coef > 0


class TrainerConfig(Section):
    """The Megatron-Core trainer."""

    learning_rate: Annotated[float, Field(gt=0.0)] = 1e-6
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    adam_beta1: Probability = 0.9
    adam_beta2: Probability = 0.999
    max_grad_norm: Annotated[float, Field(gt=0.0)] = 1.0
    max_tokens_per_micro_batch: Positive = 4096
    """Token budget, padding included, of one forward and backward pass."""
    data_parallel_size: Positive = 1


class HardwareConfig(Section):
    """What of this machine each process may use."""

    trainer_threads: Positive
    engine_threads: Positive
    reward_processes: Positive = 2
    kv_cache_gib: Annotated[float, Field(gt=0.0)] = 1.0
    max_num_seqs: Positive = 256
    """Requests that the engine decodes at once."""
    trainer_gpus: Annotated[float, Field(ge=0.0)] = 0.0
    """GPUs that Ray reserves for each trainer rank, the reference included. Fractions share one."""
    engine_gpus: Annotated[float, Field(ge=0.0)] = 0.0


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
    model: ModelConfig
    data: DataConfig
    rollout: RolloutConfig
    rewards: dict[str, RewardConfig]
    """Domain to grader."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    trainer: TrainerConfig = TrainerConfig()
    hardware: HardwareConfig
    sync: SyncConfig = SyncConfig()
    tracking: TrackingConfig = TrackingConfig()

    @model_validator(mode="after")
    def _every_domain_has_a_grader(self) -> Config:
        missing = sorted(set(self.data.domain_interleave_probs) - set(self.rewards))
        if missing:
            there = ", ".join(sorted(self.rewards))
            raise ValueError(f"no grader for domain {', '.join(missing)}: add it under rewards (there: {there})")
        return self

    @model_validator(mode="after")
    def _evaluation_needs_prompts(self) -> Config:
        if self.eval_steps > 0 and not self.data.held_out:
            raise ValueError("eval_steps is not 0, but data.held_out names no file: add one, or set eval_steps=0")
        return self

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


def model_directory(config: ModelConfig) -> Path:
    """The model's directory, checked.

    Raises:
        FileNotFoundError: the directory or its config.json is not there.
    """
    directory = Path(config.path).expanduser()
    if not (directory / "config.json").is_file():
        raise FileNotFoundError(
            f"model.path: {directory} is not a Hugging Face model directory (no config.json). "
            "`make model` makes the default one; `model.path=DIR` takes any other."
        )
    return directory
