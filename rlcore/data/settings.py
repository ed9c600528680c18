"""Where a training's prompts come from."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from rlcore.section import Positive, Probability, Section

Level = Annotated[int, Field(ge=0)]


class ReasoningGymConfig(Section):
    """Problems that reasoning-gym makes when a training starts. Those held out are none of those trained on."""

    task: str
    """Any of reasoning-gym's, but those whose verifier executes the answer."""
    domain: Annotated[str, Field(min_length=1)] = "reasoning_gym"
    train: Positive = 500
    held_out: Annotated[int, Field(ge=0)] = 50
    seed: int = 0
    curriculum: Level | dict[str, Level] = Field(default_factory=dict)
    """Levels of attributes of the task's curriculum, or one for all of them; the others keep their own."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Of the task's own configuration; they come after the curriculum."""
    instruction: str = "Answer with nothing but the result."
    """After the question."""


class DataConfig(Section):
    """Prompt datasets: JSONL files whose rows name their domain, and problems that are made."""

    train: list[str] = Field(default_factory=list)
    held_out: list[str] = Field(default_factory=list)
    reasoning_gym: list[ReasoningGymConfig] = Field(default_factory=list)
    prompt_length: Positive
    """Longest prompt, in tokens, chat template included. Longer ones are dropped and counted."""
    domain_interleave_probs: dict[str, Probability]
    """Share of each domain among the sampled prompts. Sums to 1."""

    @property
    def holds_out(self) -> bool:
        """Whether there are prompts to evaluate on."""
        return bool(self.held_out) or any(source.held_out for source in self.reasoning_gym)

    @model_validator(mode="after")
    def _has_prompts(self) -> DataConfig:
        if not self.train and not self.reasoning_gym:
            raise ValueError("there is nothing to train on: name files in data.train, or tasks in data.reasoning_gym")
        return self

    @model_validator(mode="after")
    def _probabilities_sum_to_one(self) -> DataConfig:
        total = sum(self.domain_interleave_probs.values())
        if abs(total - 1.0) > 1e-6:
            parts = " + ".join(f"{domain} {p:g}" for domain, p in self.domain_interleave_probs.items())
            raise ValueError(f"domain_interleave_probs must sum to 1, but {parts} = {total:g}")
        return self
