"""What is wrong with a configuration, said so that it can be mended: path, value, origin, what would be right."""

from __future__ import annotations

import difflib
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

Path = tuple[str, ...]
Origin = Callable[[Path], str | None]
"""Where the value at a path was written: a file and line, or an override; None if nowhere."""


class ConfigError(ValueError):
    """The configuration cannot be used; the message has one line for each problem."""


def describe(error: ValidationError, model: type[BaseModel], origin: Origin) -> str:
    """Every problem of a validation, one a line: `path (origin): what is wrong; what would be right`."""
    return "\n".join(f"  {_describe_problem(problem, model, origin)}" for problem in error.errors(include_url=False))


def nearest(name: str, known: Sequence[str]) -> str:
    """The known name that is close to a given one, if any, and all the known names."""
    close = difflib.get_close_matches(name, known, n=1)
    guess = f"did you mean {close[0]}? " if close else ""
    return f"{guess}there are: {', '.join(sorted(known))}"


def nearest_key(path: Path, model: type[BaseModel]) -> str:
    """What an unknown key was probably meant to be: one beside it, one elsewhere in the configuration, or a list."""
    section = _section(model, path[:-1])
    beside = list(section.model_fields) if section else []
    close = difflib.get_close_matches(path[-1], beside, n=1)
    if close:
        return f"did you mean {'.'.join((*path[:-1], close[0]))}?"
    elsewhere = {found[-1]: ".".join(found) for found in _keys(model)}
    close = difflib.get_close_matches(path[-1], elsewhere, n=1, cutoff=0.8)
    if close:
        return f"did you mean {elsewhere[close[0]]}?"
    return f"there are: {', '.join(sorted(beside))}"


def _describe_problem(problem: ErrorDetails, model: type[BaseModel], origin: Origin) -> str:
    path = tuple(str(part) for part in problem["loc"])
    where = origin(path)
    head = f"{'.'.join(path)} ({where})" if where else ".".join(path)
    value, context = problem["input"], problem.get("ctx", {})
    match problem["type"]:
        case "extra_forbidden":
            return f"{head}: unknown key; {nearest_key(path, model)}"
        case "missing":
            return f"{head}: is needed and not set"
        case "value_error":
            return f"{head}: {context['error']}" if path else str(context["error"])
        case "literal_error":
            return f"{head}: {value!r} is not one of {context['expected']}"
        case "model_type" | "dict_type":
            section = _section(model, path)
            keys = f" with the keys {', '.join(section.model_fields)}" if section else ""
            return f"{head}: {value!r} is not a section{keys}"
        case _:
            return f"{head}: {value!r} is refused; {_lower_first(problem['msg'])}"


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _section(model: type[BaseModel], path: Path) -> type[BaseModel] | None:
    """The model of the section at a path, through sections, and dictionaries and lists of sections."""
    section: type[BaseModel] | None = model
    keys = iter(path)
    for key in keys:
        field = section.model_fields.get(key) if section else None
        section = _model_of(field.annotation) if field else None
        if field and get_origin(field.annotation) in (dict, tuple):
            next(keys, None)
    return section


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """The section a field holds, itself or as the value of a dictionary, a list or an optional."""
    if get_origin(annotation) in (dict, tuple, Union, types.UnionType, Annotated):
        return next(filter(None, map(_model_of, get_args(annotation))), None)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _keys(model: type[BaseModel], prefix: Path = ()) -> Iterator[Path]:
    """Paths of all keys with a fixed name."""
    for name, field in model.model_fields.items():
        yield (*prefix, name)
        section = _model_of(field.annotation)
        if section and get_origin(field.annotation) not in (dict, tuple):
            yield from _keys(section, (*prefix, name))
