"""Which rows of a batch each optimizer step trains on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def optimizer_steps(
    rows: Sequence[int], *, epochs: int, mini_batches: int, seed: int, iteration: int
) -> list[list[int]]:
    """The rows of each step: `epochs` times all of them, each time divided into `mini_batches` parts.

    PPO, arXiv 1707.06347, algorithm 1: K epochs over mini-batches. The unit is the row, not the group: its advantage
    is already relative to its group. An epoch's division is random, the same for whoever knows seed, iteration and
    epoch, and its parts differ by at most one row. Fewer rows than parts: a part for each row. The rows of a step
    are in ascending order.
    """
    parts = min(mini_batches, len(rows))
    steps = []
    for epoch in range(epochs if rows else 0):
        order = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(iteration, epoch))).permutation(rows)
        steps += [sorted(part.tolist()) for part in np.array_split(order, parts)]
    return steps
