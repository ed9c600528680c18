"""What every dataset here is made of."""

from __future__ import annotations

from typing import Any, NamedTuple

SEED = 20
Row = dict[str, Any]
"""One line of a JSONL file (rlcore/data/datasets.py)."""


class Split(NamedTuple):
    train: list[Row]
    held_out: list[Row]
