"""Policy and critic as Megatron-Core GPTModels, from a Hugging Face directory, scoring response tokens only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from mbridge import AutoBridge
from mbridge.core.bridge import Bridge
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, PretrainedConfig

from rlcore.algorithms import entropy_from_logits, logprobs_from_logits
from rlcore.trainer.attention import TreeAttention

HEAD_CHUNK = 256
"""Response positions whose logits exist at the same time."""

CPU_ARGUMENTS = {
    "use_cpu_initialization": True,
    "masked_softmax_fusion": False,
    "persist_layer_norm": False,
}
"""Settings of TransformerConfig without CUDA kernels."""

LOCAL_NORMS = {
    "input_layernorm.weight": ["model.layers.{layer_number}.input_layernorm.weight"],
    "pre_mlp_layernorm.weight": ["model.layers.{layer_number}.post_attention_layernorm.weight"],
}
"""The norms of Megatron's local layers. mbridge knows those of Transformer Engine, which sit in the linears."""


class UnsupportedModel(ValueError):
    """The Hugging Face model has something that this trainer does not compute."""


class TreeModel(GPTModel):
    """A GPTModel over packed trees: positions are those given, not the places in the sequence.

    `forward(input_ids, position_ids, layout, labels=..., loss_mask=...)` takes the fields of a `MicroBatch`:
    `input_ids` and `position_ids` (1, S), `layout` (2, S), and of N outputs the places, `loss_mask` (N,) int64, and
    the tokens, `labels` (N,) int64.
    """

    def _preprocess(self, input_ids: torch.Tensor, position_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        decoder_input, _, *others = super()._preprocess(input_ids, position_ids, *args, **kwargs)
        positions = position_ids[0]
        return decoder_input, self.rotary_pos_emb.get_emb(int(positions.max()) + 1)[positions], *others


class ResponseScorer(TreeModel):
    """Returns log-probabilities of chosen tokens instead of logits of all positions.

    Two float32 tensors (N,): the label's log-probability, and the entropy of the distribution, both at `temperature`.
    The entropy has a gradient where `entropy_gradient`. Logits are computed HEAD_CHUNK positions at a time, and once
    more in the backward pass.
    """

    def __init__(self, *args: Any, temperature: float, entropy_gradient: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.temperature = temperature
        self.entropy_gradient = entropy_gradient

    def _postprocess(
        self,
        hidden_states: torch.Tensor,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        labels: torch.Tensor,
        *args: Any,
        loss_mask: torch.Tensor,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = hidden_states[loss_mask, 0]
        chunks = [
            checkpoint(self._score, hidden, tokens, use_reentrant=False)
            for hidden, tokens in zip(chosen.split(HEAD_CHUNK), labels.split(HEAD_CHUNK), strict=True)
        ]
        logprobs, entropies = zip(*chunks, strict=True)
        return torch.cat(logprobs), torch.cat(entropies)

    def _score(self, hidden: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weight = self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None
        logits = self.output_layer(hidden.unsqueeze(1), weight=weight)[0].squeeze(1).float()
        if self.temperature != 1.0:
            logits = logits / self.temperature
        logprobs = logprobs_from_logits(logits, tokens)
        # Second, so that without its gradient the backward pass does not compute it again.
        with torch.set_grad_enabled(self.entropy_gradient and torch.is_grad_enabled()):
            return logprobs, entropy_from_logits(logits)


class ValueModel(TreeModel):
    """A value head in place of the vocabulary's: one number for each chosen place.

    Returns a tuple of one float32 tensor (N,). The head is linear, without bias, and starts at 0: before the first
    update every value is 0, and no state is preferred.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # With tied embeddings the vocabulary's head is no parameter of its own.
        super().__init__(*args, **{**kwargs, "share_embeddings_and_output_weights": True})

    def add_value_head(self) -> None:
        """After the weights are loaded: a Hugging Face directory has none for it."""
        embedding = self.embedding.word_embeddings.weight
        self.value_head = nn.Linear(
            self.config.hidden_size, 1, bias=False, device=embedding.device, dtype=embedding.dtype
        )
        nn.init.zeros_(self.value_head.weight)

    def _postprocess(
        self, hidden_states: torch.Tensor, *args: Any, loss_mask: torch.Tensor, **kwargs: Any
    ) -> tuple[torch.Tensor]:
        chosen = hidden_states[loss_mask, 0]
        return (nn.functional.linear(chosen.float(), self.value_head.weight.float()).squeeze(-1),)


M = TypeVar("M", bound=GPTModel)


def load_policy(
    directory: Path, dtype: torch.dtype, *, temperature: float, entropy_gradient: bool
) -> tuple[ResponseScorer, Bridge]:
    """The model of a Hugging Face directory, in `dtype`, and the bridge that names its weights.

    Raises:
        UnsupportedModel: an architecture mbridge does not map, or a position encoding other than plain RoPE.
    """
    return _load(partial(ResponseScorer, temperature=temperature, entropy_gradient=entropy_gradient), directory, dtype)


def load_critic(directory: Path, dtype: torch.dtype) -> tuple[ValueModel, Bridge]:
    """The model of a Hugging Face directory under a value head, in `dtype`, and the bridge that names its weights.

    Raises:
        UnsupportedModel: an architecture mbridge does not map, or a position encoding other than plain RoPE.
    """
    model, bridge = _load(ValueModel, directory, dtype)
    model.add_value_head()
    return model, bridge


def _load(make: Callable[..., M], directory: Path, dtype: torch.dtype) -> tuple[M, Bridge]:
    hf_config = AutoConfig.from_pretrained(directory)
    try:
        bridge = AutoBridge.from_config(hf_config, dtype=dtype)
    except ValueError as error:
        raise UnsupportedModel(f"{directory}: {error}") from None
    _read_rope(hf_config, directory)
    cuda = torch.cuda.is_available()
    platform = {} if cuda else CPU_ARGUMENTS
    bridge.set_extra_args(perform_initialization=False, calculate_per_token_loss=True, **platform)
    bridge._OTHER_MAPPING = {**bridge._OTHER_MAPPING, **LOCAL_NORMS}
    bridge._MLP_MAPPING = {**bridge._MLP_MAPPING, **LOCAL_NORMS}
    layers = get_gpt_decoder_block_spec(bridge.config, use_transformer_engine=cuda)
    for layer in layers.layer_specs:
        layer.submodules.self_attention.submodules.core_attention = TreeAttention
    model = make(
        config=bridge.config,
        transformer_layer_spec=layers,
        share_embeddings_and_output_weights=hf_config.tie_word_embeddings,
        **bridge._get_gptmodel_args(),
    )
    model.to(device="cuda" if cuda else "cpu", dtype=dtype)
    with torch.no_grad():
        bridge.load_weights([model], str(directory))
    return model, bridge


def _read_rope(hf_config: PretrainedConfig, directory: Path) -> None:
    """Put the RoPE base where mbridge looks for it: transformers 5 keeps it in `rope_parameters`."""
    rope = hf_config.rope_parameters
    if rope["rope_type"] != "default":
        raise UnsupportedModel(
            f"{directory / 'config.json'}: rope_parameters.rope_type is {rope['rope_type']!r}; "
            "only 'default' is supported"
        )
    hf_config.rope_theta = rope["rope_theta"]
