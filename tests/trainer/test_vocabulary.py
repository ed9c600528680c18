"""Scores a tile of the vocabulary at a time are those of all logits together."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlcore.algorithms import entropy_from_logits, logprobs_from_logits
from rlcore.trainer import vocabulary
from rlcore.trainer.vocabulary import embed, score_tokens


class Alone:
    """A group of one rank."""

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 1


ALONE: dist.ProcessGroup = Alone()  # type: ignore[assignment]
HIDDEN, VOCABULARY = 6, 23


def inputs(rows: int, seed: int, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = (torch.randn(rows, HIDDEN, generator=generator) * scale).requires_grad_()
    weight = torch.randn(VOCABULARY, HIDDEN, generator=generator).requires_grad_()
    return hidden, weight, torch.randint(VOCABULARY, (rows,), generator=generator)


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 5),
    tile=st.integers(1, 130),
    temperature=st.sampled_from([1.0, 0.7]),
    entropy_gradient=st.booleans(),
    scale=st.sampled_from([0.1, 1.0, 100.0]),
    seed=st.integers(0, 9),
)
def test_tiles_give_the_scores_of_all_logits_and_their_gradients(
    rows: int, tile: int, temperature: float, entropy_gradient: bool, scale: float, seed: int
) -> None:
    hidden, weight, tokens = inputs(rows, seed, scale)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabulary, "TILE", {"cpu": tile})
        ours = score_tokens(hidden, weight, tokens, ALONE, temperature=temperature, entropy_gradient=entropy_gradient)
        logits = hidden @ weight.T / temperature
        theirs = logprobs_from_logits(logits, tokens), entropy_from_logits(logits)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * max(scale, 1.0))
        assert ours[1].requires_grad is entropy_gradient
        losses = [
            logprobs.sum() + (entropy.square().sum() if entropy_gradient else 0) for logprobs, entropy in (ours, theirs)
        ]
        gradients = [torch.autograd.grad(loss, (hidden, weight)) for loss in losses]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-4 * max(scale, 1.0))


def test_a_logit_far_above_the_others_leaves_nothing_infinite() -> None:
    hidden, weight, tokens = torch.full((2, 1), 300.0), torch.tensor([[1.0], [0.0], [-1.0]]), torch.tensor([0, 2])
    logprobs, entropy = score_tokens(hidden, weight, tokens, ALONE, temperature=1.0, entropy_gradient=False)
    assert logprobs.tolist() == [0.0, -600.0]
    assert entropy.tolist() == [0.0, 0.0]


def test_no_rows_have_no_scores_and_no_gradient() -> None:
    hidden, weight, tokens = inputs(0, seed=0)
    logprobs, _ = score_tokens(hidden, weight, tokens, ALONE, temperature=1.0, entropy_gradient=False)
    logprobs.sum().backward()
    assert logprobs.shape == (0,)
    assert weight.grad is not None and not weight.grad.any()


def test_the_hidden_states_have_the_same_gradient_where_the_weights_have_none() -> None:
    hidden, weight, tokens = inputs(3, seed=0)
    gradients: list[Tensor] = []
    for head in (weight, weight.detach()):
        logprobs, _ = score_tokens(hidden, head, tokens, ALONE, temperature=1.0, entropy_gradient=False)
        gradients += torch.autograd.grad(logprobs.sum(), hidden)
    assert gradients[0].any()
    assert torch.equal(gradients[0], gradients[1])


def test_where_megatron_sums_a_weights_gradients_both_ends_add_theirs_to_the_sum() -> None:
    hidden, weight, tokens = inputs(4, seed=0)

    def loss() -> Tensor:
        embedded = embed(tokens, weight)
        logprobs, _ = score_tokens(hidden + embedded, weight, tokens, ALONE, temperature=1.0, entropy_gradient=False)
        return logprobs.sum()

    (expected,) = torch.autograd.grad(loss(), weight)
    weight.main_grad = torch.ones_like(weight)  # type: ignore[attr-defined]
    loss().backward()
    assert weight.grad is None
    torch.testing.assert_close(vars(weight)["main_grad"], expected + 1)


def test_embeddings_have_the_gradient_of_torchs_with_tokens_that_come_twice() -> None:
    weight = inputs(1, seed=0)[1]
    tokens = torch.tensor([[3, 1, 3], [0, 3, 22]])
    factor = torch.randn(2, 3, HIDDEN)
    gradients = [
        torch.autograd.grad((rows * factor).sum(), weight)[0]
        for rows in (embed(tokens, weight), torch.nn.functional.embedding(tokens, weight))
    ]
    torch.testing.assert_close(*gradients)
