"""Values and gradients of every policy loss against the equations written as loops, and finite differences of these."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from rlcore.algorithms import LossInputs
from tests.algorithms.loss_cases import CASES, run, with_selection
from tests.algorithms.reference_losses import REFERENCES, Response
from tests.algorithms.strategies import loss_inputs

STEP = 1e-6


REFERENCED = {case: value for case, value in CASES.items() if value[0] in REFERENCES}
each_reference = pytest.mark.parametrize(("name", "options"), REFERENCED.values(), ids=REFERENCED)


def reference(name: str, options: dict[str, Any], batch: LossInputs, logprobs: Tensor) -> Tensor:
    """Token losses at `logprobs`, with `batch.logprobs` under every stop-gradient. (B, T), 0 where masked."""
    losses = torch.zeros_like(logprobs)
    selected = torch.zeros_like(batch.mask) if batch.selected is None else batch.selected
    assert batch.rollout_logprobs is not None and batch.sequence_rewards is not None
    for row, mask in enumerate(batch.mask):
        if mask.any():
            response = Response(
                logprobs=logprobs[row][mask].tolist(),
                frozen=batch.logprobs[row][mask].tolist(),
                old=batch.old_logprobs[row][mask].tolist(),
                rollout=batch.rollout_logprobs[row][mask].tolist(),
                advantages=batch.advantages[row][mask].tolist(),
                selected=selected[row][mask].tolist(),
                reward=float(batch.sequence_rewards[row]),
            )
            losses[row, mask] = torch.tensor(REFERENCES[name](response, **options), dtype=losses.dtype)
    return losses


@each_reference
@settings(max_examples=25)
@given(batch=loss_inputs())
def test_values_are_those_of_the_equations(name: str, options: dict[str, Any], batch: LossInputs) -> None:
    batch = with_selection(name, options, batch)
    token_loss, _, _ = run(name, options, batch)
    torch.testing.assert_close(token_loss, reference(name, options, batch, batch.logprobs))


@each_reference
@pytest.mark.parametrize("seed", range(8))
def test_gradients_equal_finite_differences(name: str, options: dict[str, Any], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    old_logprobs = -normal(3, 5).abs() - 0.1
    # Advantages of a response are equal in the first row, as most estimators have it, and differ in the others.
    advantages = normal(3, 5)
    advantages[0] = advantages[0, 0]
    batch = LossInputs(
        logprobs=old_logprobs + 0.5 * normal(3, 5),
        old_logprobs=old_logprobs,
        advantages=advantages,
        mask=torch.rand(3, 5, generator=generator) < 0.8,
        rollout_logprobs=old_logprobs + 0.5 * normal(3, 5),
        sequence_rewards=torch.tensor([1.0, -1.0, -1.0], dtype=torch.float64),
    )
    batch = with_selection(name, options, batch)
    cotangent = normal(3, 5)
    _, gradient, _ = run(name, options, batch, cotangent)
    expected = torch.zeros_like(gradient)
    for index in range(gradient.numel()):
        step = torch.zeros_like(gradient)
        step.view(-1)[index] = STEP
        above = reference(name, options, batch, batch.logprobs + step)
        below = reference(name, options, batch, batch.logprobs - step)
        expected.view(-1)[index] = ((above - below) * cotangent).sum() / (2 * STEP)
    torch.testing.assert_close(gradient, expected, rtol=1e-7, atol=1e-8)
