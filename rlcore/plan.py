"""Which stages an iteration consists of, known from the configuration before anything runs."""

from __future__ import annotations

from dataclasses import dataclass

from rlcore.config import Config
from rlcore.trainer.settings import OptimizerSettings

INPUTS: dict[str, tuple[str, ...]] = {
    "sample": (),
    "generate": ("sample",),
    "reward": ("generate",),
    "ref_logprob": ("generate",),
    "old_logprob": ("generate",),
    "values": ("generate",),
    "statistics": ("generate", "reward", "old_logprob", "ref_logprob"),
    "advantage": ("generate", "reward", "old_logprob", "ref_logprob", "values"),
    "update": ("advantage",),
    "sync": ("advantage", "update"),
    "evaluate": ("sync",),
    "checkpoint": ("sync", "statistics"),
}
"""Every stage, in the order in which it is submitted, with the stages whose outputs it reads."""

READS: dict[str, tuple[str, ...]] = {
    "sample": (
        *("seed", "data", "model.path", "rollout.rollout_batch_size", "rollout.async_ratio", "rollout.extra_prompts"),
        *("rollout.filter", "rollout.domain_quotas"),
    ),
    "generate": ("model", "rollout", "algorithm.adv_estimator"),
    "reward": ("rewards",),
    "ref_logprob": ("model", "rollout.temperature"),
    "old_logprob": ("model", "rollout.temperature"),
    "values": ("model", "critic"),
    "statistics": ("algorithm", "rewards", "rollout.response_length"),
    "advantage": ("algorithm", "rewards", "rollout.response_length"),
    "update": (
        *("seed", "model", "algorithm", "critic", "rollout.temperature", "rollout.response_length"),
        *("trainer.share_prompts", *(f"trainer.{name}" for name in OptimizerSettings.model_fields)),
    ),
    "sync": ("model", "rollout.temperature"),
    "evaluate": ("data", "model", "rewards", "rollout.response_length"),
    "checkpoint": ("model",),
}
"""The configuration fields that each stage's output depends on, dotted for one key of a section.

How the work is divided is not among them: layout, micro-batches and threads change the rounding of a number at most.
"""


def also_reads(stage: str, config: Config) -> tuple[str, ...]:
    """The fields beside READS that a stage's output depends on: rewards decide what a filter rejects."""
    return ("rewards",) if stage == "generate" and config.rollout.filter is not None else ()


REPEATABLE = frozenset({"sample", "advantage", "statistics"})
"""Stages that put out the same bytes from the same inputs, whenever and wherever they run."""

UPDATED = frozenset({"update", "sync", "evaluate", "checkpoint"})
"""The stages whose output is of the policy after the iteration's update."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The DAG of one iteration: each stage with the stages whose outputs it reads."""

    inputs: dict[str, tuple[str, ...]]

    def __contains__(self, stage: str) -> bool:
        return stage in self.inputs

    @property
    def stages(self) -> tuple[str, ...]:
        return tuple(self.inputs)

    def drawing(self) -> str:
        """One line per stage: what it reads, and its name."""
        width = max(len(" + ".join(reads)) for reads in self.inputs.values())
        return "\n".join(f"{' + '.join(reads):>{width}} ─► {stage}" for stage, reads in self.inputs.items())


def is_repeated(stage: str, updated: bool) -> bool:
    """Whether a stage whose output was lost is computed again.

    It may come out as another one. So it is not once the iteration's update was applied: the update would be of a
    batch that there is no more, and could not be applied to the other one as well.
    """
    return not updated or stage in REPEATABLE or stage in UPDATED


def is_due(every: int, iteration: int, last: int) -> bool:
    """Whether something that happens every so many iterations, and at the end, happens now. 0: never."""
    return every > 0 and (iteration % every == 0 or iteration == last)


def plan_iteration(config: Config, iteration: int) -> Plan:
    """The stages of iteration `iteration` (the first is 1). A stage whose output nobody reads is not one of them."""
    absent = set()
    if not config.algorithm.uses_reference:
        absent.add("ref_logprob")
    if config.algorithm.old_logprobs == "rollout":
        absent.add("old_logprob")
    if not config.algorithm.uses_critic:
        absent.add("values")
    if not config.keeps_state:
        absent.add("statistics")
    if not is_due(config.eval_steps, iteration, config.iterations):
        absent.add("evaluate")
    if iteration != config.iterations and not is_due(config.save_steps, iteration, config.iterations):
        absent.add("checkpoint")
    return Plan(
        {
            stage: tuple(name for name in reads if name not in absent)
            for stage, reads in INPUTS.items()
            if stage not in absent
        }
    )
