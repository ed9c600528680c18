"""The metrics of a run as they are read back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rlcore.store import StoreError
from rlcore.tracking.history import read_metrics


def test_rows_come_by_iteration_and_half_a_last_line_is_none(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 2}\n{"iteration": 1, "loss": 0.5}\n{"itera')
    assert read_metrics(tmp_path) == [{"iteration": 1, "loss": 0.5}, {"iteration": 2}]


@pytest.mark.parametrize("line", [b"{", b'{"loss": 0.5}', b"[1]", b"\xff", b""])
def test_a_line_that_is_no_row_is_named_with_what_to_do(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"iteration": 1}\n' + line + b'\n{"iteration": 3}\n')
    with pytest.raises(StoreError, match=rf"{re.escape(str(path))}:2 cannot be read: .*; delete the line, and run"):
        read_metrics(tmp_path)
