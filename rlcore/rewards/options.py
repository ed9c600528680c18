"""What can be set about each grader. Read with the configuration, without the graders' own packages.

The fields are the keyword arguments of the grader's function `grade`, which says what they do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from rlcore.config_errors import describe
from rlcore.section import Section


class NoOptions(Section):
    """There is nothing to set."""


class CountdownOptions(Section):
    all_numbers: bool = True


class FunctionOptions(Section):
    path: Annotated[str, Field(pattern=r"^[\w.]+:\w+$")]


class IfevalOptions(Section):
    credit: Literal["share", "all"] = "share"
    loose: bool = False


class MultipleChoiceOptions(Section):
    reward_type: Literal["accuracy", "loose", "soft", "strict"] = "accuracy"


OPTIONS: dict[str, type[Section]] = {
    "countdown": CountdownOptions,
    "format": NoOptions,
    "function": FunctionOptions,
    "ifeval": IfevalOptions,
    "math": NoOptions,
    "multiple_choice": MultipleChoiceOptions,
    "reasoning_gym": NoOptions,
}
"""By grader: a module of rlcore.rewards."""


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
