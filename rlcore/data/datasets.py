"""Prompt datasets: JSONL files, checked line by line, and their prompts as tokens."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal

import fsspec
import polars as pl
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rlcore.batches import MESSAGE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROMPTS: dict[str, pl.DataType | type[pl.DataType]] = {
    "prompt_id": pl.String,
    "domain": pl.String,
    "tag": pl.String,
    "messages": pl.List(MESSAGE),
    "ground_truth": pl.String,
}
"""Columns of what `load_prompts` returns."""

ROW = "domain, tag, either prompt or messages (each with role and content), ground_truth, and optionally id"

Text = Annotated[str, Field(min_length=1)]


class DatasetError(ValueError):
    """A dataset file is not as it should be. Names file, line, what is wrong, and what would be right."""


class Message(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["system", "user", "assistant"]
    content: str


class Row(BaseModel):
    """One line of a dataset."""

    model_config = ConfigDict(extra="forbid", strict=True)

    domain: Text
    tag: Text
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    prompt: Text | None = None
    """Short for one message of the user."""
    ground_truth: str | dict[str, Any]
    id: Text | None = None

    @model_validator(mode="after")
    def _one_prompt(self) -> Row:
        if (self.messages is None) == (self.prompt is None):
            raise ValueError("has both messages and prompt" if self.prompt else "has neither messages nor prompt")
        if self.messages is not None and self.messages[-1].role != "user":
            raise ValueError(f"the last of messages must be the user's, but it is the {self.messages[-1].role}'s")
        return self


def load_prompts(paths: Sequence[str], domains: set[str]) -> pl.DataFrame:
    """The rows of JSONL files, in the order of files and lines, with the columns `PROMPTS`.

    `prompt_id` is the row's own `id`, or `{file name without suffix}:{line}`. A ground truth that is a
    JSON object becomes its JSON text. Blank lines are skipped.

    Args:
        paths: paths or fsspec URLs.
        domains: the configured domains; a row of another one is refused.

    Raises:
        DatasetError: a line is no such row, two rows have the same id, or a file has no rows.
        FileNotFoundError: a file is not there.
    """
    places: dict[str, str] = {}
    rows: list[tuple[str, str, str, list[dict[str, str]], str]] = []
    for path in paths:
        stem = PurePosixPath(path).stem
        before = len(rows)
        for number, line in _lines(path):
            place = f"{path}:{number}"
            row = _parse(line, place, domains)
            prompt_id = row.id or f"{stem}:{number}"
            if prompt_id in places:
                raise DatasetError(
                    f"{place}: the id {prompt_id!r} is already that of {places[prompt_id]}; give each row its own "
                    "`id`, or the files different names"
                )
            places[prompt_id] = place
            messages = row.messages or [Message(role="user", content=row.prompt or "")]
            truth = row.ground_truth if isinstance(row.ground_truth, str) else json.dumps(row.ground_truth)
            rows.append((prompt_id, row.domain, row.tag, [message.model_dump() for message in messages], truth))
        if len(rows) == before:
            raise DatasetError(f"{path}: no rows; expected one JSON object per line")
    return pl.DataFrame(rows, schema=PROMPTS, orient="row")


def tokenize_prompts(
    prompts: pl.DataFrame, tokenizer: PreTrainedTokenizerBase, prompt_length: int
) -> tuple[pl.DataFrame, list[str]]:
    """The prompts with a column `prompt_ids` (list of int32), and the ids of those dropped as too long.

    Tokens are those of the model's chat template, up to where the assistant's answer begins.

    Args:
        prompt_length: most tokens of a prompt that is kept.

    Raises:
        DatasetError: a domain has no prompt left.
    """
    tokens = tokenizer.apply_chat_template(
        prompts["messages"].to_list(), add_generation_prompt=True, tokenize=True, return_dict=False
    )
    tokenized = prompts.with_columns(prompt_ids=pl.Series(tokens, dtype=pl.List(pl.Int32)))
    fits = pl.col("prompt_ids").list.len() <= prompt_length
    kept, dropped = tokenized.filter(fits), tokenized.filter(~fits)
    emptied = dropped.join(kept, on="domain", how="anti")
    if len(emptied):
        shortest = emptied.group_by("domain").agg(pl.col("prompt_ids").list.len().min()).sort("domain")
        lengths = ", ".join(f"{domain} {length}" for domain, length in shortest.iter_rows())
        raise DatasetError(
            f"prompt_length {prompt_length} drops every prompt of a domain; the shortest, in tokens: {lengths}"
        )
    return kept, dropped["prompt_id"].to_list()


def _lines(path: str) -> Iterator[tuple[int, bytes]]:
    with fsspec.open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, line


def _parse(line: bytes, place: str, domains: set[str]) -> Row:
    try:
        row = Row.model_validate_json(line.strip())
    except ValidationError as error:
        raise DatasetError(f"{place}: {_describe(error)}") from None
    if row.domain not in domains:
        raise DatasetError(
            f"{place}: the domain {row.domain!r} is not configured{_nearest(row.domain, domains)}; "
            f"configured are {', '.join(sorted(domains))}"
        )
    return row


def _describe(error: ValidationError) -> str:
    """What is wrong with a row, and what would be right."""
    # A misspelt key is also a missing one: the misspelling says more.
    first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    # The branch of a union that pydantic was in is no part of the row.
    key = ".".join(str(part) for part in first["loc"] if part not in ("str", "dict[str,any]"))
    known = Message.model_fields if len(first["loc"]) > 1 else Row.model_fields
    match first["type"]:
        case "json_invalid":
            return f"not JSON: {first['ctx']['error'].replace('line 1 ', '')}; expected one object per line"
        case "missing":
            return f"the key {key!r} is missing; expected {ROW}"
        case "extra_forbidden":
            return f"unknown key {key!r}{_nearest(str(first['loc'][-1]), known)}; expected {ROW}"
        case "value_error":
            return f"{first['ctx']['error']}; expected {ROW}"
        case _ if key == "ground_truth":
            return f"ground_truth must be a string or an object, but is {json.dumps(first['input'])[:80]}"
        case _:
            subject = f"{key}: " if key else ""
            return f"{subject}{first['msg']}, but got {json.dumps(first['input'])[:80]}"


def _nearest(name: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(name, sorted(known), n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""
