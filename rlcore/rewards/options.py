"""What can be set about each grader. Read with the configuration, without the graders' own packages.

The fields are the keyword arguments of the grader's function `grade` or `ask`, which says what they do. Only a judge's
`serve` is none: the router starts the server, and gives its `url`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from rlcore.config_errors import describe
from rlcore.section import Positive, Section


class NoOptions(Section):
    """There is nothing to set."""


class CountdownOptions(Section):
    all_numbers: bool = True


class FunctionOptions(Section):
    path: Annotated[str, Field(pattern=r"^[\w.]+:\w+$")]


class IfevalOptions(Section):
    credit: Literal["share", "all"] = "share"
    loose: bool = False


class ServeOptions(Section):
    """Of the server that is started for a judge."""

    threads: Positive = 1
    kv_cache_gib: Annotated[float, Field(gt=0.0)] = 0.25
    context_length: Positive = 2048
    """Tokens of a question and its reply."""
    max_num_seqs: Positive = 32


class JudgeOptions(Section):
    url: str | None = None
    serve: ServeOptions | None = None
    model: str
    scale: Literal["yes_no", "0_to_10"] = "yes_no"
    rubric: str | None = None
    max_tokens: Positive = 512
    api_key_variable: str | None = None

    @model_validator(mode="after")
    def _is_somewhere(self) -> JudgeOptions:
        if (self.url is None) == (self.serve is None):
            raise ValueError("set either url, of a judge that is there, or serve, to have one started")
        return self


class MultipleChoiceOptions(Section):
    reward_type: Literal["accuracy", "loose", "soft", "strict"] = "accuracy"


class RemoteOptions(Section):
    url: str


OPTIONS: dict[str, type[Section]] = {
    "countdown": CountdownOptions,
    "format": NoOptions,
    "function": FunctionOptions,
    "ifeval": IfevalOptions,
    "judge": JudgeOptions,
    "math": NoOptions,
    "multiple_choice": MultipleChoiceOptions,
    "reasoning_gym": NoOptions,
    "remote": RemoteOptions,
}
"""By grader: a module of rlcore.rewards."""
SERVICES = frozenset({"judge", "remote"})
"""Those that ask a service."""


def check_options(grader: str, options: Mapping[str, Any]) -> None:
    """
    Raises:
        ValueError: the grader has no such option, or it cannot have that value. Names each.
    """
    model = OPTIONS[grader]
    try:
        model.model_validate(options)
    except ValidationError as error:
        raise ValueError(f"options of grader {grader}:\n{describe(error, model, lambda path: None)}") from None
