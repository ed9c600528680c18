"""Settings of the optimizer and of its learning rate, as a section of the configuration. Needs no torch."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from rlcore.section import NonNegative, Positive, Probability, Section


class OptimizerSettings(Section):
    """AdamW and its learning rate. A step of the schedule is an iteration, however many optimizer steps it has."""

    learning_rate: Annotated[float, Field(gt=0.0)] = 1e-6
    """The largest: after the warm-up, before the decay."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    """How the rate falls from learning_rate to min_lr."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Iterations over which the rate rises linearly; the one after them has learning_rate."""
    warmup_ratio: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Instead of warmup_steps: their share of the schedule, rounded up."""
    min_lr: NonNegative = 0.0
    """Where linear and cosine end."""
    lr_decay_steps: Positive | None = None
    """Iterations after which min_lr is reached. Null: those of the run, which cannot be continued for longer then."""
    weight_decay: NonNegative = 0.0
    """Of matrices; norms and biases do not decay."""
    adam_beta1: Probability = 0.9
    adam_beta2: Probability = 0.999
    max_grad_norm: Annotated[float, Field(gt=0.0)] = 1.0

    @model_validator(mode="after")
    def _every_setting_is_read(self) -> OptimizerSettings:
        if self.warmup_steps and self.warmup_ratio:
            raise ValueError("warmup_steps and warmup_ratio are two ways to say one thing: set one of them")
        if self.min_lr and self.lr_scheduler_type == "constant":
            raise ValueError("min_lr is where a rate that falls ends: set lr_scheduler_type to linear or cosine")
        if self.min_lr > self.learning_rate:
            raise ValueError(f"min_lr {self.min_lr:g} is above learning_rate {self.learning_rate:g}")
        if self.lr_decay_steps is not None and not self.has_length:
            raise ValueError(
                "lr_decay_steps is the length of linear, cosine and warmup_ratio: set one of them, or leave it null"
            )
        return self

    @property
    def has_length(self) -> bool:
        """Whether the rate depends on how long the schedule is."""
        return self.lr_scheduler_type != "constant" or self.warmup_ratio > 0

    def schedule_steps(self, idle: int = 0) -> tuple[int, int]:
        """Iterations of warm-up, and iterations from the start of the schedule to its end.

        Args:
            idle: iterations of the run before the schedule starts.

        Raises:
            ValueError: the warm-up leaves no iteration for the learning rate itself.
        """
        if not self.has_length:
            return self.warmup_steps, self.warmup_steps + 1
        assert self.lr_decay_steps is not None, "the configuration of a run fills it in"
        length = self.lr_decay_steps - idle
        warmup = self.warmup_steps or math.ceil(self.warmup_ratio * length)
        if warmup >= length:
            before = f", {idle} of them critic.warmup_iterations" if idle else ""
            raise ValueError(
                f"the warm-up of {warmup} iterations is not shorter than the schedule: lr_decay_steps is "
                f"{self.lr_decay_steps} (iterations, where it is not set){before}"
            )
        return warmup, length
