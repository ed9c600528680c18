"""How many floating point operations a second this machine's matrix product reaches. benchmarks/trainer.py starts it.

    python benchmarks/processes/gemm.py RESULT.json HIDDEN INTERMEDIATE TOKENS

The products are those of a model's MLP: (tokens, hidden) by (hidden, intermediate) and the way back, for the tokens
of a micro-batch and four times as many. Each data type's best rate counts.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

SECONDS = 0.5
"""Of repetitions for each product; the shortest one counts."""


def best_rate(rows: int, inner: int, columns: int, dtype: torch.dtype, device: str) -> float:
    """FLOP/s of (rows, inner) by (inner, columns), 2·rows·inner·columns operations."""
    left = torch.randn(rows, inner, device=device).to(dtype)
    right = torch.randn(columns, inner, device=device).to(dtype).t()
    shortest, end = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        started = time.perf_counter()
        torch.mm(left, right)
        if device == "cuda":
            torch.cuda.synchronize()
        shortest = min(shortest, time.perf_counter() - started)
    return 2 * rows * inner * columns / shortest


def main(result: str, hidden: int, intermediate: int, tokens: int) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shapes = [
        (rows, *sides) for rows in (tokens, 4 * tokens) for sides in ((hidden, intermediate), (intermediate, hidden))
    ]
    rates = {
        str(dtype).removeprefix("torch."): max(best_rate(*shape, dtype, device) for shape in shapes)
        for dtype in (torch.bfloat16, torch.float32)
    }
    Path(result).write_text(json.dumps(rates))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
