from __future__ import annotations

import math

import pytest
import torch

from rlcore.algorithms import entropy_from_logits, logprobs_from_logits


def test_logprobs_by_hand() -> None:
    # Probabilities 1/4, 3/4 at temperature 1; at temperature 1/2 the odds are squared: 1/10, 9/10.
    logits = torch.tensor([[[0.0, math.log(3.0)], [0.0, math.log(3.0)]]])
    tokens = torch.tensor([[0, 1]])
    assert logprobs_from_logits(logits, tokens).tolist() == [pytest.approx([math.log(0.25), math.log(0.75)])]
    assert logprobs_from_logits(logits, tokens, temperature=0.5).tolist() == [
        pytest.approx([math.log(0.1), math.log(0.9)])
    ]


def test_entropy_by_hand() -> None:
    logits = torch.tensor([[0.0, 0.0], [0.0, math.log(3.0)]])
    skewed = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert entropy_from_logits(logits).tolist() == pytest.approx([math.log(2.0), skewed])


@pytest.mark.parametrize("scale", [1.0, 200.0])
@pytest.mark.parametrize("temperature", [0.6, 1.0, 2.0])
def test_agree_with_log_softmax_in_float64(scale: float, temperature: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = scale * torch.randn(3, 5, 64, generator=generator)
    tokens = torch.randint(64, (3, 5), generator=generator)
    log_softmax = (logits.double() / temperature).log_softmax(-1)
    expected = log_softmax.gather(-1, tokens[..., None]).squeeze(-1)
    torch.testing.assert_close(
        logprobs_from_logits(logits, tokens, temperature).double(), expected, atol=1e-4, rtol=1e-5
    )
    expected_entropy = -(log_softmax.exp() * log_softmax).sum(-1)
    torch.testing.assert_close(
        entropy_from_logits(logits / temperature).double(), expected_entropy, atol=1e-4, rtol=1e-5
    )


def test_bfloat16_logits_are_computed_in_float32() -> None:
    logits = torch.randn(4, 1000, generator=torch.Generator().manual_seed(0)).bfloat16()
    tokens = torch.arange(4)
    assert logprobs_from_logits(logits, tokens).dtype == entropy_from_logits(logits).dtype == torch.float32
    torch.testing.assert_close(
        logprobs_from_logits(logits, tokens), logprobs_from_logits(logits.double(), tokens).float()
    )


def test_gradients_equal_finite_differences() -> None:
    logits = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    tokens = torch.tensor([[0, 1, 2], [3, 4, 0]])
    assert torch.autograd.gradcheck(lambda x: logprobs_from_logits(x, tokens, 0.7), logits)
    assert torch.autograd.gradcheck(lambda x: entropy_from_logits(x), logits)
