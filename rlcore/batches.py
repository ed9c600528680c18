"""The schema of every batch that travels between stages.

A batch is a polars DataFrame. Each model below is strict: these columns, these dtypes, no nulls
unless said, per-token columns of equal length within a row, and no NaN anywhere.
"""

from __future__ import annotations

import functools
from typing import ClassVar

import pandera.polars as pa
import polars as pl
from pandera.api.base.checks import CheckResult
from pandera.errors import SchemaError, SchemaErrors

DROP_REASONS = ("empty_response", "no_reward", "group_mean", "no_variance", "history", "difficulty", "overlong")
"""Why a response does not train (rlcore.shaping.masks). One to which several apply has the first."""

GREEDY = "#greedy"
"""Ends the sample_id of the response that a prompt's others are compared with. It is graded, and does not train."""

TOKENS = {"inner": pl.Int32()}
FLOATS = {"inner": pl.Float32()}
MESSAGE = pl.Struct({"role": pl.String, "content": pl.String})
COMPONENT = pl.Struct({"name": pl.String, "value": pl.Float64})
GRADE: dict[str, pl.DataType | type[pl.DataType]] = {
    "reward": pl.Float64,
    "reward_status": pl.String,
    "components": pl.List(COMPONENT),
    "detail": pl.String,
    "seconds": pl.Float64,
}
"""Columns of a RewardBatch beside its key."""


class BatchError(ValueError):
    """A batch broke its schema. Names the column, the check, and the first offending keys."""


class Batch(pa.DataFrameModel):
    """Base of all batches."""

    _key: ClassVar[str]
    """The column that identifies a row. (pandera takes every public attribute for a column.)"""
    _per_token: ClassVar[tuple[str, ...]] = ()
    """List columns that have one element per response token; the first one sets the length."""

    class Config:
        strict = True


class PromptBatch(Batch):
    """One row per prompt."""

    _key: ClassVar[str] = "prompt_id"

    prompt_id: str = pa.Field(unique=True)
    domain: str
    tag: str
    messages: pl.List = pa.Field(dtype_kwargs={"inner": MESSAGE})
    prompt_ids: pl.List = pa.Field(dtype_kwargs=TOKENS)
    ground_truth: str
    """What the domain's grader compares with; JSON where the grader needs more than a string."""
    seed: int = pa.Field(ge=0)
    """Seed of the prompt's sampling; response k of the group uses a seed derived from it and k."""
    epoch: int = pa.Field(ge=0)
    """How often this prompt's dataset had been gone through before."""


class RolloutBatch(Batch):
    """One row per response. `sample_id` is `{prompt_id}#{index in the group}`, or with GREEDY behind the prompt."""

    _key: ClassVar[str] = "sample_id"
    _per_token: ClassVar[tuple[str, ...]] = ("response_ids", "loss_mask", "rollout_logprobs", "policy_versions")

    sample_id: str = pa.Field(unique=True)
    prompt_id: str
    domain: str
    prompt_text: str
    """The prompt's last message."""
    prompt_ids: pl.List = pa.Field(dtype_kwargs=TOKENS)
    ground_truth: str
    response_ids: pl.List = pa.Field(dtype_kwargs=TOKENS)
    loss_mask: pl.List = pa.Field(dtype_kwargs={"inner": pl.Boolean()})
    """True where a token trains."""
    rollout_logprobs: pl.List = pa.Field(dtype_kwargs=FLOATS)
    """log μ of each sampled token, of the distribution that was sampled from."""
    policy_versions: pl.List = pa.Field(dtype_kwargs=TOKENS)
    """Optimizer updates behind the weights that sampled each token."""
    finish_reason: str = pa.Field(isin=["stop", "length", "abort"])
    response_text: str
    seconds: float = pa.Field(ge=0)
    """From submission to the last token."""
    grade: pl.Struct = pa.Field(dtype_kwargs={"fields": GRADE})
    """What the graders said the moment it was complete: the columns of a RewardBatch."""
    graded_under: str
    """Digest of the configuration of the rewards (`rewards`) that they said it under."""


class RewardBatch(Batch):
    """One row per response."""

    _key: ClassVar[str] = "sample_id"

    sample_id: str = pa.Field(unique=True)
    reward: float = pa.Field(nullable=True)
    """Null unless `reward_status` is scored."""
    reward_status: str = pa.Field(isin=["scored", "timeout", "grader_error", "infra_error"])
    components: pl.List = pa.Field(dtype_kwargs={"inner": COMPONENT})
    """What the reward is made of, by name; empty unless scored."""
    detail: str
    """Why a response was not scored; empty if it was."""
    seconds: float = pa.Field(ge=0)

    @pa.dataframe_check(name="reward is null exactly where reward_status is not 'scored'")
    def _null_unless_scored(cls, data: pa.PolarsData) -> pl.LazyFrame:
        return data.lazyframe.select((pl.col("reward_status") == "scored") == pl.col("reward").is_not_null())


class LogprobBatch(Batch):
    """One row per response: log-probabilities of its tokens under one model."""

    _key: ClassVar[str] = "sample_id"
    _per_token: ClassVar[tuple[str, ...]] = ("logprobs",)

    sample_id: str = pa.Field(unique=True)
    logprobs: pl.List = pa.Field(dtype_kwargs=FLOATS)


class ValueBatch(Batch):
    """One row per response: what the critic expects from each of its tokens on."""

    _key: ClassVar[str] = "sample_id"
    _per_token: ClassVar[tuple[str, ...]] = ("values",)

    sample_id: str = pa.Field(unique=True)
    values: pl.List = pa.Field(dtype_kwargs=FLOATS)
    """V of the state before each token."""


class TrainBatch(Batch):
    """One row per response, with everything that the update reads."""

    _key: ClassVar[str] = "sample_id"
    _per_token: ClassVar[tuple[str, ...]] = (
        "response_ids",
        "loss_mask",
        "rollout_logprobs",
        "old_logprobs",
        "ref_logprobs",
        "values",
        "advantages",
        "returns",
    )

    sample_id: str = pa.Field(unique=True)
    prompt_ids: pl.List = pa.Field(dtype_kwargs=TOKENS)
    response_ids: pl.List = pa.Field(dtype_kwargs=TOKENS)
    loss_mask: pl.List = pa.Field(dtype_kwargs={"inner": pl.Boolean()})
    rollout_logprobs: pl.List = pa.Field(dtype_kwargs=FLOATS)
    old_logprobs: pl.List = pa.Field(dtype_kwargs=FLOATS)
    ref_logprobs: pl.List = pa.Field(dtype_kwargs=FLOATS, nullable=True)
    """Null as a whole where no reference model is used."""
    values: pl.List = pa.Field(dtype_kwargs=FLOATS, nullable=True)
    """The critic's, before the update; null as a whole where there is none."""
    advantages: pl.List = pa.Field(dtype_kwargs=FLOATS)
    returns: pl.List = pa.Field(dtype_kwargs=FLOATS)
    raw_reward: float = pa.Field(nullable=True)
    """The graders', null where they gave none."""
    overlong_penalty: float = pa.Field(nullable=True, le=0)
    """Added to the reward, as the other penalties; null where the domain has none."""
    length_penalty: float = pa.Field(nullable=True, le=0)
    repetition_penalty: float = pa.Field(nullable=True, le=0)
    shaped_reward: float = pa.Field(nullable=True)
    """What the advantage estimator is given; null where no baseline may use it."""
    score: float
    """What the response is worth to the advantage estimator, before it is spread over its tokens."""
    sample_weight: float = pa.Field(ge=0)
    drop_reason: str = pa.Field(nullable=True, isin=DROP_REASONS)
    """Why this row does not train (its loss mask is all False then); null if it does."""


class EvalBatch(Batch):
    """One row per held-out prompt, answered greedily."""

    _key: ClassVar[str] = "prompt_id"
    _per_token: ClassVar[tuple[str, ...]] = ("response_ids", "rollout_logprobs")

    prompt_id: str = pa.Field(unique=True)
    domain: str
    tag: str
    prompt_text: str
    response_ids: pl.List = pa.Field(dtype_kwargs=TOKENS)
    rollout_logprobs: pl.List = pa.Field(dtype_kwargs=FLOATS)
    finish_reason: str = pa.Field(isin=["stop", "length", "abort"])
    response_text: str
    ground_truth: str
    reward: float = pa.Field(nullable=True)
    """The first grader's of the domain, neither weighted nor shaped."""
    reward_status: str = pa.Field(isin=["scored", "timeout", "grader_error", "infra_error"])


SCHEMAS: dict[str, type[Batch]] = {
    schema.__name__: schema
    for schema in (PromptBatch, RolloutBatch, RewardBatch, LogprobBatch, ValueBatch, TrainBatch, EvalBatch)
}


def is_greedy() -> pl.Expr:
    """Whether a response of a RolloutBatch is a greedy one."""
    return pl.col("sample_id").str.ends_with(GREEDY)


def key_column(schema: type[Batch]) -> str:
    """Name of the column that identifies a row."""
    return schema._key


def validate(batch: pl.DataFrame, schema: type[Batch]) -> pl.DataFrame:
    """The same frame, checked: columns, dtypes, values, list lengths, nulls inside lists, NaN.

    Raises:
        BatchError: names the column, the check, and the first three offending keys.
    """
    if not _is_valid(batch, schema):
        _refuse(batch, schema)
    return batch


def _is_valid(batch: pl.DataFrame, schema: type[Batch]) -> bool:
    """Everything that the schema asks for, in few queries: pandera makes a dozen of them for every column."""
    definition = schema.to_schema()
    columns, frame = definition.columns.values(), batch.lazy()
    return (
        dict(batch.schema) == {column.name: column.dtype.type for column in columns}
        and not any(batch[column.name].null_count() for column in columns if not column.nullable)
        and all(batch[column.name].n_unique() == len(batch) for column in columns if column.unique)
        and not any(
            batch.select(offends.any().alias(f"{i}") for i, (*_, offends) in enumerate(_row_checks(schema))).row(0)
        )
        and all(_passes(check(frame, column.name)) for column in columns for check in column.checks)
        and all(_passes(check(frame)) for check in definition.checks)
    )


def _passes(result: CheckResult) -> bool:
    return bool(result.check_passed.collect().item())


@functools.cache
def _row_checks(schema: type[Batch]) -> tuple[tuple[str, str, pl.Expr], ...]:
    """What pandera does not check: column, name of the check, and which rows fail it (null: they do not)."""
    types = {column.name: column.dtype.type for column in schema.to_schema().columns.values()}
    lists = {name: dtype.inner for name, dtype in types.items() if isinstance(dtype, pl.List)}
    holes = [(name, "no null inside a list", _any_element(name, pl.element().is_null())) for name in lists]
    infinite = [
        (name, "finite", _any_element(name, ~pl.element().is_finite()) if name in lists else ~pl.col(name).is_finite())
        for name, dtype in types.items()
        if lists.get(name, dtype).is_float()
    ]
    first = schema._per_token[:1]
    unequal = [
        (name, f"as many elements as {first[0]}", pl.col(name).list.len() != pl.col(first[0]).list.len())
        for name in schema._per_token[1:]
    ]
    return (*holes, *infinite, *unequal)


def _any_element(column: str, condition: pl.Expr) -> pl.Expr:
    return pl.col(column).list.eval(condition).list.any()


def _refuse(batch: pl.DataFrame, schema: type[Batch]) -> None:
    """Name the first thing that is wrong with a batch.

    Raises:
        BatchError: that.
    """
    try:
        schema.validate(batch)
    except (SchemaError, SchemaErrors) as error:
        raise BatchError(_describe(error, batch, schema)) from None
    for column, check, offends in _row_checks(schema):
        rows = batch.filter(offends)
        if len(rows):
            keys = ", ".join(rows[schema._key].head(3).to_list())
            raise BatchError(f"{schema.__name__}.{column}: {len(rows)} rows fail the check '{check}', first: {keys}")


def _describe(error: SchemaError | SchemaErrors, batch: pl.DataFrame, schema: type[Batch]) -> str:
    """One line for pandera's error, which otherwise carries whole rows."""
    first = error.schema_errors[0] if isinstance(error, SchemaErrors) else error
    column = getattr(first.schema, "name", None) or schema.__name__
    check = getattr(first.check, "name", None) or first.check or first.reason_code
    where = ""
    if isinstance(first.check_output, pl.DataFrame) and schema._key in batch.columns:
        failed = first.check_output.to_series(first.check_output.width - 1)
        if failed.dtype == pl.Boolean and len(failed) == len(batch):
            where = ", first: " + ", ".join(str(key) for key in batch.filter(~failed)[schema._key].head(3))
    message = str(first).splitlines()[0][:200]
    return f"{schema.__name__}.{column}: {check}{where} ({message})"
