"""Policy and critic as Megatron-Core GPTModels over packed trees, with outputs at response tokens only."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.transformer import attention
from torch import nn

from rlcore.trainer.context import choose, unite
from rlcore.trainer.elementwise import rotate, rotation
from rlcore.trainer.vocabulary import score_tokens

# Megatron's own computes cosines and sines of all positions in every layer, twice.
attention.apply_rotary_pos_emb = lambda heads, by, **kwargs: rotate(heads, by)


class TreeModel(GPTModel):
    """A GPTModel, or a pipeline stage of one, over packed trees: positions are those given, not the places.

    `forward(input_ids, position_ids, layout, labels=..., loss_mask=...)` takes the fields of a `MicroBatch`:
    `input_ids` and `position_ids` (1, S), `layout` (2, S), and of N outputs the places, `loss_mask` (N,) int64, and
    the tokens, `labels` (N,) int64. With context parallelism the first two are this rank's part of S. The last stage
    returns its outputs, (outputs, N) float32, the same on all tensor- and context-parallel ranks; the others return
    hidden states.
    """

    def _score(self, hidden: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """(n,) outputs from the hidden states (n, H) of chosen places and their tokens (n,)."""
        raise NotImplementedError

    def _preprocess(self, input_ids: torch.Tensor, position_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        decoder_input, _, *others = super()._preprocess(input_ids, position_ids, *args, **kwargs)
        positions = position_ids[0]
        angles = self.rotary_pos_emb.get_emb(int(positions.max()) + 1)[positions]
        return decoder_input, rotation(angles), *others

    def _postprocess(
        self,
        hidden_states: torch.Tensor,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        labels: torch.Tensor,
        *args: Any,
        loss_mask: torch.Tensor,
        **kwargs: Any,
    ) -> torch.Tensor:
        if not self.post_process:
            return hidden_states
        if self.config.sequence_parallel:
            # Every rank goes on with the same, so each takes its own part of the same gradient.
            hidden_states = gather_from_sequence_parallel_region(hidden_states, tensor_parallel_output_grad=False)
        group = parallel_state.get_context_parallel_group()
        chosen, which = choose(hidden_states[:, 0], loss_mask, group)
        return torch.stack([unite(values, which, len(labels), group) for values in self._score(chosen, labels[which])])


class ResponseScorer(TreeModel):
    """Returns log-probabilities of chosen tokens instead of logits of all positions.

    Two outputs: the label's log-probability, and the entropy of the distribution, both at `temperature`. The entropy
    has a gradient where `entropy_gradient`.
    """

    def __init__(self, *args: Any, temperature: float, entropy_gradient: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.temperature = temperature
        self.entropy_gradient = entropy_gradient

    def _score(self, hidden: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tied = self.share_embeddings_and_output_weights
        return score_tokens(
            hidden,
            self.shared_embedding_or_output_weight() if tied else self.output_layer.weight,
            tokens,
            parallel_state.get_tensor_model_parallel_group(),
            temperature=self.temperature,
            entropy_gradient=self.entropy_gradient,
        )


class ValueModel(TreeModel):
    """A value head in place of the vocabulary's: one output for each chosen place.

    The head is linear, without bias, and starts at 0: before the first update every value is 0, and no state is
    preferred.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # With tied embeddings the vocabulary's head is no parameter of its own, unless it is on another stage.
        super().__init__(*args, **{**kwargs, "share_embeddings_and_output_weights": True})

    def add_value_head(self) -> None:
        """After the weights are loaded: a Hugging Face directory has none for it."""
        if not self.post_process:
            return
        weight = self.decoder.final_layernorm.weight
        self.value_head = nn.Linear(self.config.hidden_size, 1, bias=False, device=weight.device, dtype=weight.dtype)
        nn.init.zeros_(self.value_head.weight)

    def _score(self, hidden: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (nn.functional.linear(hidden.float(), self.value_head.weight.float()).squeeze(-1),)
