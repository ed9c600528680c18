"""List columns to padded tensors and back."""

from __future__ import annotations

import numpy as np
import polars as pl
import torch
from torch import Tensor


def padded(column: pl.Series, fill: float = 0.0) -> Tensor:
    """A list column of N rows as an (N, T) float32 tensor, T the longest row, `fill` after each row's end."""
    lengths = torch.from_numpy(column.list.len().to_numpy().astype(np.int64))
    width = int(lengths.max()) if len(lengths) else 0
    values = torch.full((len(column), width), fill, dtype=torch.float32)
    flat = column.explode(empty_as_null=False).cast(pl.Float32).to_numpy()
    values[torch.arange(width) < lengths[:, None]] = torch.from_numpy(flat.copy())
    return values


def unpadded(values: Tensor, like: pl.Series) -> pl.Series:
    """An (N, T) tensor as a list column with the row lengths of `like`."""
    rows = pl.Series("values", values.numpy()).cast(pl.List(pl.Float32))
    return pl.DataFrame({"values": rows, "length": like.list.len()}).select(pl.col("values").list.head("length"))[
        "values"
    ]
