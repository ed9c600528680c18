"""The graders, for people."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rlcore.rewards.options import OPTIONS


def print_graders(console: Console) -> None:
    """What each does, and its options with their defaults."""
    table = Table("grader", "what it does", "options")
    for grader, model in OPTIONS.items():
        options = [
            f"{name}, needed" if field.is_required() else f"{name}={field.default}"
            for name, field in model.model_fields.items()
        ]
        table.add_row(grader, _first_line(f"rlcore.rewards.{grader}"), "\n".join(options) or "–")
    console.print(table)


def _first_line(module: str) -> str:
    """Of its docstring. Read, not imported: graders need packages that take seconds."""
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    return (ast.get_docstring(ast.parse(Path(spec.origin).read_text())) or "").split("\n")[0]
