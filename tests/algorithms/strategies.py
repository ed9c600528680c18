"""Random micro-batches for the property tests."""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
import torch
from torch import Tensor

from rlcore.algorithms import LossInputs


@dataclass(frozen=True)
class Tokens:
    """Response-aligned float64 tensors (B, T)."""

    logprobs: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    mask: Tensor


@st.composite
def tokens(draw: st.DrawFn, spread: float = 0.5) -> Tokens:
    """Up to 6 sequences of up to 8 tokens; masks with gaps, empty rows and empty batches among them."""
    rows, length = draw(st.integers(1, 6)), draw(st.integers(1, 8))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    density = draw(st.sampled_from([0.0, 0.3, 0.8, 1.0]))

    def normal() -> Tensor:
        return torch.randn(rows, length, generator=generator, dtype=torch.float64)

    old_logprobs = -normal().abs() - 0.1
    return Tokens(
        logprobs=old_logprobs + spread * normal(),
        old_logprobs=old_logprobs,
        advantages=normal(),
        mask=torch.rand(rows, length, generator=generator) < density,
    )


@st.composite
def splits(draw: st.DrawFn, rows: int) -> list[slice]:
    """A way to cut so many rows into consecutive micro-batches."""
    cuts = sorted(draw(st.sets(st.integers(1, rows - 1)))) if rows > 1 else []
    return [slice(start, end) for start, end in zip([0, *cuts], [*cuts, rows], strict=True)]


@st.composite
def loss_inputs(draw: st.DrawFn, spread: float = 0.5) -> LossInputs:
    """`tokens` with an engine's log-probabilities (some not finite) and rewards of both signs; nothing selected."""
    batch = draw(tokens(spread))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    noise = torch.randn(batch.mask.shape, generator=generator, dtype=torch.float64)
    rollout_logprobs = batch.old_logprobs + 0.5 * noise
    if draw(st.booleans()):
        rollout_logprobs = rollout_logprobs.masked_fill(noise > 1.5, -torch.inf)
    return LossInputs(
        logprobs=batch.logprobs,
        old_logprobs=batch.old_logprobs,
        advantages=batch.advantages,
        mask=batch.mask,
        rollout_logprobs=rollout_logprobs,
        sequence_rewards=torch.randn(len(batch.mask), generator=generator, dtype=torch.float64),
    )
