"""What breaks a batch's schema is refused, by column, check and key; what keeps to it passes."""

from __future__ import annotations

import polars as pl
import pytest

from rlcore.batches import (
    SCHEMAS,
    Batch,
    BatchError,
    EvalBatch,
    PromptBatch,
    RewardBatch,
    RolloutBatch,
    TrainBatch,
    key_column,
    validate,
)
from tests.rollout_rows import PROMPT_AND_GRADE

VALUES: dict[str, list[object]] = {
    "reward_status": ["scored", "scored"],
    "finish_reason": ["stop", "length"],
    "drop_reason": [None, "no_reward"],
    "messages": [[{"role": "user", "content": "1 + 1?"}], [{"role": "user", "content": "2 + 2?"}]],
    "components": [[{"name": "math", "value": 1.0}], []],
    "grade": [PROMPT_AND_GRADE["grade"]] * 2,
    "overlong_penalty": [0, -1],
    "length_penalty": [0, -1],
    "repetition_penalty": [0, -1],
}


def types_of(schema: type[Batch]) -> dict[str, pl.DataType]:
    return {name: column.dtype.type for name, column in schema.to_schema().columns.items()}


def batch_of(schema: type[Batch]) -> pl.DataFrame:
    """Two rows, `a` with one token and `b` with none."""

    def values(name: str, dtype: pl.DataType) -> list[object]:
        if name in VALUES:
            return VALUES[name]
        if isinstance(dtype, pl.List):
            return [[1], []]
        return ["a", "b"] if dtype == pl.String else [0, 1]

    types = types_of(schema)
    return pl.DataFrame({name: values(name, dtype) for name, dtype in types.items()}, schema=types, strict=False)


@pytest.mark.parametrize("schema", SCHEMAS.values())
def test_a_batch_that_keeps_to_its_schema_passes_and_so_does_one_without_rows(schema: type[Batch]) -> None:
    batch = batch_of(schema)
    assert validate(batch, schema) is batch
    assert len(validate(batch.clear(), schema)) == 0


COLUMNS = [(schema, name) for schema in SCHEMAS.values() for name in types_of(schema)]
NULLABLE = [(s, name) for s, name in COLUMNS if s.to_schema().columns[name].nullable]


@pytest.mark.parametrize(("schema", "column"), COLUMNS)
def test_a_column_that_is_missing_or_of_another_type_is_refused(schema: type[Batch], column: str) -> None:
    batch = batch_of(schema)
    with pytest.raises(BatchError, match=column):
        validate(batch.drop(column), schema)
    with pytest.raises(BatchError, match=rf"{schema.__name__}\.{column}: dtype"):
        validate(batch.with_columns(pl.Series(column, [0, 1], pl.Int8)), schema)


def with_null(schema: type[Batch], column: str) -> pl.DataFrame:
    """Null instead of the second value. A list in its place is empty, so it is no shorter than the null."""
    batch = batch_of(schema)
    return batch.with_columns(pl.Series(column, [batch[column][0], None], batch.schema[column]))


@pytest.mark.parametrize(("schema", "column"), [pair for pair in COLUMNS if pair not in NULLABLE])
def test_a_null_is_refused(schema: type[Batch], column: str) -> None:
    with pytest.raises(BatchError, match=rf"{schema.__name__}\.{column}: not_nullable"):
        validate(with_null(schema, column), schema)


@pytest.mark.parametrize(("schema", "column"), NULLABLE)
def test_a_null_passes_where_the_schema_allows_it(schema: type[Batch], column: str) -> None:
    holed = with_null(schema, column)
    unscored = {"reward_status": pl.Series(["scored", "timeout"])} if schema is RewardBatch else {}
    validate(holed.with_columns(**unscored), schema)


@pytest.mark.parametrize(
    ("schema", "column"),
    [(schema, name) for schema, name in COLUMNS if isinstance(types_of(schema)[name], pl.List)],
)
def test_a_null_inside_a_list_is_refused(schema: type[Batch], column: str) -> None:
    batch = batch_of(schema)
    holed = batch.with_columns(pl.Series(column, [[None], []], batch.schema[column]))
    with pytest.raises(BatchError, match=rf"{schema.__name__}\.{column}: 1 rows .* 'no null inside a list', first: a"):
        validate(holed, schema)


def is_of_floats(dtype: pl.DataType) -> bool:
    return (dtype.inner if isinstance(dtype, pl.List) else dtype).is_float()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(("schema", "column"), [pair for pair in COLUMNS if is_of_floats(types_of(pair[0])[pair[1]])])
def test_a_number_that_is_not_finite_is_refused(schema: type[Batch], column: str, value: float) -> None:
    batch = batch_of(schema)
    dtype = batch.schema[column]
    bad = pl.Series(column, [[value], []] if isinstance(dtype, pl.List) else [value, 0.0], dtype)
    with pytest.raises(BatchError, match=rf"{schema.__name__}\.{column}: .*(finite|not_nullable|greater|less).*a"):
        validate(batch.with_columns(bad), schema)


@pytest.mark.parametrize(("schema", "column"), [(s, name) for s in SCHEMAS.values() for name in s._per_token[1:]])
def test_per_token_columns_of_unequal_length_are_refused(schema: type[Batch], column: str) -> None:
    batch = batch_of(schema)
    longer = batch.with_columns(pl.Series(column, [[1], [1]], batch.schema[column], strict=False))
    with pytest.raises(BatchError, match=rf"\.{column}: 1 rows fail the check 'as many elements as .*, first: b"):
        validate(longer, schema)


@pytest.mark.parametrize("schema", SCHEMAS.values())
def test_a_key_that_is_there_twice_is_refused(schema: type[Batch]) -> None:
    key = key_column(schema)
    with pytest.raises(BatchError, match=rf"\.{key}: field_uniqueness.*, first: a, a"):
        validate(batch_of(schema).with_columns(pl.lit("a").alias(key)), schema)


@pytest.mark.parametrize("schema", SCHEMAS.values())
def test_a_column_that_the_schema_does_not_know_is_refused(schema: type[Batch]) -> None:
    with pytest.raises(BatchError, match="surplus"):
        validate(batch_of(schema).with_columns(surplus=1), schema)


@pytest.mark.parametrize(
    ("schema", "column", "value"),
    [
        (PromptBatch, "seed", -1),
        (PromptBatch, "epoch", -1),
        (RolloutBatch, "finish_reason", "tired"),
        (RolloutBatch, "seconds", -0.1),
        (RewardBatch, "reward_status", "lost"),
        (RewardBatch, "seconds", -0.1),
        (TrainBatch, "sample_weight", -1.0),
        (TrainBatch, "drop_reason", "boring"),
        (EvalBatch, "finish_reason", "tired"),
        (EvalBatch, "reward_status", "lost"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused(schema: type[Batch], column: str, value: object) -> None:
    batch = batch_of(schema)
    with pytest.raises(BatchError, match=rf"{schema.__name__}\.{column}: .*, first: a, b"):
        validate(batch.with_columns(pl.lit(value, batch.schema[column]).alias(column)), schema)


def test_a_reward_where_none_was_scored_is_refused() -> None:
    with pytest.raises(BatchError, match="reward is null exactly where reward_status is not 'scored'"):
        validate(batch_of(RewardBatch).with_columns(reward_status=pl.lit("timeout")), RewardBatch)
