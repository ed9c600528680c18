"""The options of grading and shaping one domain's rewards, and of the masks over all domains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rlcore.rewards.options import check_options
from rlcore.section import NonNegative, Positive, Probability, Section

Finite = Annotated[float, Field(allow_inf_nan=False)]
Coefficient = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0.0)]
Grader = Literal[
    "countdown", "format", "function", "ifeval", "judge", "math", "multiple_choice", "reasoning_gym", "remote"
]
Scope = Literal["group", "batch", "running", "none"]


class OverlongPenalty(Section):
    """DAPO's soft overlong punishment (arXiv 2503.14476, equation 13): no step at the limit, but a slope before it."""

    buffer_length: Positive
    """L_cache, in tokens: from so far below `rollout.response_length` on, the penalty grows linearly. At most that."""
    factor: Coefficient = 1.0
    """Penalty of a response of `rollout.response_length` tokens. DAPO's 1 goes with rewards of −1 and 1."""


class LengthPenalty(Section):
    """A price on every token beyond a free length."""

    coefficient: Coefficient
    """Reward that each further token costs; 0.0003 in arXiv 2503.04697."""
    free_length: Annotated[int, Field(ge=0)] = 0
    """Tokens that cost nothing."""


class RepetitionPenalty(Section):
    """A price on the share of a response's n-grams that occurred in it before."""

    ngram_size: Positive
    """Tokens of the n-grams. Small ones repeat in any text."""
    coefficient: Coefficient
    """Penalty of a response that does nothing but repeat."""


class ShapingConfig(Section):
    """From the graders' reward of one domain to the one that advantages are made of.

    In this order: clip, scale, add the penalties, normalise. Statistics are of this domain alone.
    """

    clip_low: Finite | None = None
    clip_high: Finite | None = None
    scale: Coefficient = 1.0
    overlong: OverlongPenalty | None = None
    length: LengthPenalty | None = None
    repetition: RepetitionPenalty | None = None
    norm_mean_type: Scope = "none"
    """Mean that is subtracted: of the group, of the domain's part of the batch, or of all of the run so far."""
    norm_std_type: Scope = "none"
    """Standard deviation that is divided by, of the same choice; the two need not agree."""

    @model_validator(mode="after")
    def _low_is_below_high(self) -> ShapingConfig:
        if self.clip_low is not None and self.clip_high is not None and self.clip_low >= self.clip_high:
            raise ValueError(f"clip_low {self.clip_low:g} must be below clip_high {self.clip_high:g}")
        return self

    @property
    def uses_running_statistics(self) -> bool:
        return "running" in (self.norm_mean_type, self.norm_std_type)


class WeightedGrader(Section):
    """One of the graders of a domain."""

    grader: Grader
    weight: Finite = 1.0
    """The domain's reward is the sum of weight times reward. 0: graded and recorded, but not rewarded."""
    ground_truth: str | None = None
    """One ground truth for all of the domain, in place of the prompts' own: rules of form that always hold, say."""
    options: dict[str, Any] = Field(default_factory=dict)
    """What can be set about this grader (rlcore/rewards/options.py; `rlvr rewards` lists it)."""

    @model_validator(mode="after")
    def _options_are_the_graders(self) -> WeightedGrader:
        check_options(self.grader, self.options)
        return self


class RewardConfig(Section):
    """How the responses of one domain are graded, by `grader` or by weighted `graders`, and the rewards shaped.

    A held-out answer is right if the first grader gives it a full reward, 1, whatever the weights and the others say.
    """

    grader: Grader | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    """Of `grader`."""
    graders: tuple[WeightedGrader, ...] = ()
    timeout_seconds: Seconds = 10.0
    """Hard limit of each grader for one response; the grader process is killed at it."""
    max_failed_share: Probability = 0.2
    """If graders fail on more responses of a batch than this, the stage fails."""
    at_once: Positive = 16
    """Responses of this domain that are graded at the same time, if there are as many grader processes; those that a
    service (judge, remote) is asked about need none."""
    shaping: ShapingConfig | None = None
    """Null: that of the algorithm."""

    @model_validator(mode="after")
    def _one_way_to_grade(self) -> RewardConfig:
        if (self.grader is None) == (not self.graders):
            raise ValueError("needs either grader, or graders: a list of {grader, weight}; not both")
        if self.grader is not None:
            check_options(self.grader, self.options)
        if self.options and self.grader is None:
            raise ValueError("options belong to grader; with graders, each has its own")
        names = [weighted.grader for weighted in self.graders]
        if len(set(names)) < len(names):
            raise ValueError(f"graders: each grader once, but got {', '.join(names)}")
        return self

    @property
    def weighted_graders(self) -> tuple[WeightedGrader, ...]:
        return self.graders if self.grader is None else (WeightedGrader(grader=self.grader, options=self.options),)


class Band(Section):
    """An open interval of mean rewards: neither too hard nor too easy. ROLL's defaults, for rewards in 0 to 1."""

    low: Finite = 0.1
    high: Finite = 0.95

    @model_validator(mode="after")
    def _low_is_below_high(self) -> Band:
        if self.low >= self.high:
            raise ValueError(f"low {self.low:g} must be below high {self.high:g}")
        return self


class HistoryBand(Band):
    """An open interval of the mean reward that a prompt of the dataset earned in earlier iterations."""

    min_appearances: Positive = 1
    """A prompt that was sampled less often before is kept, whatever it earned."""
    max_age: Positive | None = None
    """Iterations after which the history of a prompt that was not sampled since says nothing. null: never."""


class MaskConfig(Section):
    """Which responses do not train, by the graders' rewards before shaping. Responses without one count nowhere.

    A group that is filtered is treated as if it had not been sampled: its rewards are in no statistic and no baseline.
    Responses that are masked do not train, but their rewards are in both.
    """

    group_mean: Band | None = None
    """Filter groups whose mean reward is outside."""
    group_std_above: NonNegative | None = None
    """Filter groups whose rewards have no larger standard deviation; a group of one has 0. With 0.0 those are the
    groups without variance, whose group-relative advantages are 0 (DAPO, arXiv 2503.14476, equation 11)."""
    difficulty: Band | None = None
    """Mask groups whose mean reward is outside (ROLL's difficulty_mask)."""
    history: HistoryBand | None = None
    """Mask groups of prompts whose earlier mean reward is outside."""
    overlong: bool = False
    """Mask responses that were cut off at `rollout.response_length` (DAPO's overlong filtering)."""


def keeps_state(shaping: Mapping[str, ShapingConfig], masks: MaskConfig) -> bool:
    """Whether shaping one batch depends on the batches before it."""
    return masks.history is not None or any(config.uses_running_statistics for config in shaping.values())
