"""What shaping keeps from batch to batch: running statistics by domain, histories by prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import polars as pl
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from rlcore.store import Report

EPOCH_SUFFIX = r"@\d+$"
"""What the sampler puts behind a dataset's prompt id (rlcore.data.sampler)."""

HISTORY_SCHEMA = {
    "prompt_id": pl.String,
    "appearances": pl.Int64,
    "responses": pl.Int64,
    "reward_sum": pl.Float64,
    "last_iteration": pl.Int64,
}


class RunningStatistics(BaseModel):
    """Count, mean and sum of squared deviations of all values so far."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """Σ (x − mean)²."""

    @classmethod
    def of(cls, values: pl.Series) -> RunningStatistics:
        """The statistics of a Float64 series without its nulls."""
        values = values.drop_nulls()
        low, high = values.min(), values.max()
        if low is None or low == high:
            # Equal values have exactly no variance, whatever the rounding of their mean.
            return cls(count=len(values), mean=low or 0.0)
        mean = values.mean()
        return cls(count=len(values), mean=mean, squares=((values - mean) ** 2).sum())

    def merged(self, other: RunningStatistics) -> RunningStatistics:
        """The statistics of both sets of values together.

        Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances" (1979).
        """
        count = self.count + other.count
        if not self.count or not other.count:
            return self if self.count else other
        delta = other.mean - self.mean
        return RunningStatistics(
            count=count,
            mean=self.mean + delta * other.count / count,
            squares=self.squares + other.squares + delta**2 * self.count * other.count / count,
        )

    @property
    def std(self) -> float | None:
        """Unbiased standard deviation; None of equal values, of one, or of none."""
        return (self.squares / (self.count - 1)) ** 0.5 if self.squares > 0.0 else None


class PromptHistories(BaseModel):
    """A table by column, one row per prompt that was ever scored, sorted by `prompt_id`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt_id: tuple[str, ...] = ()
    """In the dataset: the same in every epoch."""
    appearances: tuple[int, ...] = ()
    """Groups with at least one scored response."""
    responses: tuple[int, ...] = ()
    """Scored ones."""
    reward_sum: tuple[float, ...] = ()
    """Of the graders' rewards, before shaping."""
    last_iteration: tuple[int, ...] = ()

    @classmethod
    def of(cls, table: pl.DataFrame) -> PromptHistories:
        return cls.model_validate(table.select(HISTORY_SCHEMA.keys()).to_dict(as_series=False))

    def table(self) -> pl.DataFrame:
        """Columns as in HISTORY_SCHEMA."""
        return pl.DataFrame(self.model_dump(), schema=HISTORY_SCHEMA)

    def extended(self, groups: pl.DataFrame, iteration: int) -> PromptHistories:
        """With the scored responses of one iteration.

        Args:
            groups: columns prompt_id (with its epoch) and raw_reward (null: not scored).
        """
        new = (
            groups.drop_nulls("raw_reward")
            .with_columns(group="prompt_id", prompt_id=dataset_prompt_id())
            .group_by("prompt_id", maintain_order=True)
            .agg(
                appearances=pl.col("group").n_unique().cast(pl.Int64),
                responses=pl.len().cast(pl.Int64),
                reward_sum=pl.col("raw_reward").sum(),
            )
            .with_columns(last_iteration=pl.lit(iteration, dtype=pl.Int64))
        )
        both = pl.concat([self.table(), new])
        together = both.group_by("prompt_id").agg(
            pl.col("appearances", "responses", "reward_sum").sum(), pl.col("last_iteration").max()
        )
        return PromptHistories.of(together.sort("prompt_id"))


def _sorted(value: Any) -> Any:
    return dict(sorted(value.items())) if isinstance(value, Mapping) else value


class ShapingState(Report):
    """All that shaping knows of the iterations before. Equal states have equal JSON."""

    iteration: int = 0
    """The last one that is in it."""
    running: Annotated[dict[str, RunningStatistics], BeforeValidator(_sorted)] = Field(default_factory=dict)
    """By domain, of the rewards after clip, scale and penalties."""
    histories: PromptHistories = PromptHistories()


def dataset_prompt_id() -> pl.Expr:
    """The id of a prompt in its dataset, from `prompt_id` of a batch."""
    return pl.col("prompt_id").str.replace(EPOCH_SUFFIX, "")
