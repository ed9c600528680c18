"""Named functions with a source: the policy losses, the advantage estimators."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeVar


@dataclass(frozen=True, slots=True)
class Entry:
    """A function under its name."""

    name: str
    function: Callable[..., Any]
    source: str
    """The paper."""

    @property
    def idea(self) -> str:
        """The first line of the function's docstring."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]

    @property
    def options(self) -> dict[str, Any]:
        """Its keyword-only parameters that have a default, with it."""
        return {
            name: default for name, default in keywords(self.function).items() if default is not inspect.Parameter.empty
        }


AnyEntry = TypeVar("AnyEntry", bound=Entry)


class Registry(dict[str, AnyEntry]):
    """Entries of one kind by name; `kind` is what messages call them."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def add(self, entry: AnyEntry) -> None:
        """Enters it.

        Raises:
            ValueError: the name is taken.
        """
        if entry.name in self:
            taken = self[entry.name].function.__module__
            raise ValueError(f"there is a {self._kind} {entry.name!r} already, in {taken}")
        self[entry.name] = entry

    def find(self, name: str) -> AnyEntry:
        """The entry of that name.

        Raises:
            ValueError: there is none; names the nearest.
        """
        if name not in self:
            raise ValueError(f"no {self._kind} {name!r}; {choices(name, self)}")
        return self[name]


def keywords(function: Callable[..., Any]) -> dict[str, Any]:
    """Keyword-only parameters and their defaults, `inspect.Parameter.empty` where there is none."""
    parameters = inspect.signature(function).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}


def choices(name: str, known: Collection[str]) -> str:
    """The known name that is like an unknown one, if any, and all the known ones."""
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    return f"{hint}there are {', '.join(sorted(known))}" if known else "there are none"
