"""What can be set about each grader. Read with the configuration, without the graders' own packages.

The fields are the keyword arguments of the grader's function `grade`, which says what they do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

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


class JudgeOptions(Section):
    url: str
    model: str
    scale: Literal["yes_no", "0_to_10"] = "yes_no"
    rubric: str | None = None
    max_tokens: Positive = 512
    api_key_variable: str | None = None


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
