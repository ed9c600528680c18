"""Policy and critic as Megatron-Core GPTModels, from a Hugging Face directory, scoring response tokens only."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from mbridge import AutoBridge
from mbridge.core.bridge import Bridge
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, PretrainedConfig

from rlcore.config import TrainerConfig
from rlcore.trainer.attention import TreeAttention
from rlcore.trainer.context import choose, unite
from rlcore.trainer.vocabulary import score_tokens

HEAD_CHUNK = 256
"""Response positions whose logits exist at the same time."""

CPU_ARGUMENTS = {
    "use_cpu_initialization": True,
    "masked_softmax_fusion": False,
    "persist_layer_norm": False,
    "bias_activation_fusion": False,
    "bias_dropout_fusion": False,
    "moe_grouped_gemm": False,
}
"""Settings of TransformerConfig without CUDA kernels."""

LOCAL_NORMS = {
    "input_layernorm.weight": ["model.layers.{layer_number}.input_layernorm.weight"],
    "pre_mlp_layernorm.weight": ["model.layers.{layer_number}.post_attention_layernorm.weight"],
}
"""The norms of Megatron's local layers. mbridge knows those of Transformer Engine, which sit in the linears."""

LOCAL_EXPERT = re.compile(r"experts\.local_experts\.(\d+)\.(linear_fc[12])\.weight")


class UnsupportedModel(ValueError):
    """The Hugging Face model has something that this trainer does not compute."""


class TreeModel(GPTModel):
    """A GPTModel, or a pipeline stage of one, over packed trees: positions are those given, not the places.

    `forward(input_ids, position_ids, layout, labels=..., loss_mask=...)` takes the fields of a `MicroBatch`:
    `input_ids` and `position_ids` (1, S), `layout` (2, S), and of N outputs the places, `loss_mask` (N,) int64, and
    the tokens, `labels` (N,) int64. With context parallelism the first two are this rank's part of S. The last stage
    returns its outputs, (outputs, N) float32, the same on all tensor- and context-parallel ranks; the others return
    hidden states.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.post_process and self.config.sequence_parallel and self.output_layer is not None:
            # It sees chosen places of the whole sequence, which is gathered before.
            self.output_layer.sequence_parallel = False
            self.output_layer.allreduce_dgrad = True

    def _score(self, hidden: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """(n,) outputs from the hidden states (n, H) of chosen places and their tokens (n,)."""
        raise NotImplementedError

    def _preprocess(self, input_ids: torch.Tensor, position_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        decoder_input, _, *others = super()._preprocess(input_ids, position_ids, *args, **kwargs)
        positions = position_ids[0]
        return decoder_input, self.rotary_pos_emb.get_emb(int(positions.max()) + 1)[positions], *others

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
    has a gradient where `entropy_gradient`. Logits are computed HEAD_CHUNK positions at a time, and once more in the
    backward pass.
    """

    def __init__(self, *args: Any, temperature: float, entropy_gradient: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.temperature = temperature
        self.entropy_gradient = entropy_gradient

    def _score(self, hidden: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
        chunks = [
            checkpoint(self._score_chunk, *chunk, use_reentrant=False)
            for chunk in zip(hidden.split(HEAD_CHUNK), tokens.split(HEAD_CHUNK), strict=True)
        ]
        return tuple(torch.cat(outputs) for outputs in zip(*chunks, strict=True))

    def _score_chunk(self, hidden: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weight = self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None
        logits = self.output_layer(hidden.unsqueeze(1), weight=weight)[0].squeeze(1).float()
        if self.temperature != 1.0:
            logits = logits / self.temperature
        group = parallel_state.get_tensor_model_parallel_group()
        return score_tokens(logits, tokens, group, entropy_gradient=self.entropy_gradient)


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


M = TypeVar("M", bound=GPTModel)


def load_policy(
    layout: TrainerConfig, directory: Path, dtype: torch.dtype, *, temperature: float, entropy_gradient: bool
) -> tuple[list[ResponseScorer], Bridge]:
    """This rank's pieces of the model of a Hugging Face directory, in `dtype`, and the bridge that names its weights.

    Raises:
        UnsupportedModel: an architecture mbridge does not map, a position encoding other than plain RoPE, or one that
            cannot be divided as the layout says.
    """
    make = partial(ResponseScorer, temperature=temperature, entropy_gradient=entropy_gradient)
    return _load(make, layout, directory, dtype)


def load_critic(layout: TrainerConfig, directory: Path, dtype: torch.dtype) -> tuple[list[ValueModel], Bridge]:
    """As `load_policy`, under a value head."""
    pieces, bridge = _load(ValueModel, layout, directory, dtype)
    for piece in pieces:
        piece.add_value_head()
    return pieces, bridge


def _load(make: Callable[..., M], layout: TrainerConfig, directory: Path, dtype: torch.dtype) -> tuple[list[M], Bridge]:
    hf_config = AutoConfig.from_pretrained(directory)
    try:
        bridge = AutoBridge.from_config(hf_config, dtype=dtype)
    except ValueError as error:
        raise UnsupportedModel(f"{directory}: {error}") from None
    _read_rope(hf_config, directory)
    _check_division(hf_config, layout, directory)
    cuda = torch.cuda.is_available()
    bridge.set_extra_args(
        # Weights come from the directory, but it is in initialising them that Megatron marks the divided ones.
        perform_initialization=layout.tensor_model_parallel_size > 1,
        calculate_per_token_loss=True,
        sequence_parallel=layout.sequence_parallel,
        **({} if cuda else CPU_ARGUMENTS),
    )
    tied = hf_config.tie_word_embeddings
    head = "model.embed_tokens.weight" if tied else "lm_head.weight"
    bridge._DIRECT_MAPPING = {**bridge._DIRECT_MAPPING, "output_layer.weight": head}
    bridge._OTHER_MAPPING = {**bridge._OTHER_MAPPING, **LOCAL_NORMS}
    bridge._MLP_MAPPING = {**bridge._MLP_MAPPING, **LOCAL_NORMS}
    _name_local_experts(bridge)
    stages = layout.virtual_pipeline_model_parallel_size
    pieces = [
        make(
            config=bridge.config,
            transformer_layer_spec=_layers(bridge.config, stage),
            share_embeddings_and_output_weights=tied,
            pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
            post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
            vp_stage=stage,
            **bridge._get_gptmodel_args(),
        )
        for stage in (range(stages) if stages else [None])
    ]
    for piece in pieces:
        piece.to(device="cuda" if cuda else "cpu", dtype=dtype)
    with torch.no_grad():
        bridge.load_weights(pieces, str(directory))
    return pieces, bridge


def _name_local_experts(bridge: Bridge) -> None:
    """Name the experts of Megatron's local layers as those of its grouped ones, which mbridge knows."""
    global_names = bridge._weight_name_mapping_mcore_local_to_global

    def grouped_names(model: GPTModel, consider_ep: bool = True) -> dict[str, str]:
        first = 0
        if consider_ep and bridge.mpu.ep_size > 1:
            first = bridge.config.num_moe_experts // bridge.mpu.ep_size * bridge.mpu.ep_rank

        def grouped(match: re.Match[str]) -> str:
            return f"experts.{match[2]}.weight{first + int(match[1])}"

        names = global_names(model, consider_ep)
        return {local: LOCAL_EXPERT.sub(grouped, name) for local, name in names.items()}

    bridge._weight_name_mapping_mcore_local_to_global = grouped_names


def _layers(config: TransformerConfig, stage: int | None) -> TransformerBlockSubmodules:
    """Megatron's layers of this pipeline stage, with attention over trees."""
    layers = get_gpt_decoder_block_spec(config, use_transformer_engine=torch.cuda.is_available(), vp_stage=stage)
    for layer in layers.layer_specs:
        layer.submodules.self_attention.submodules.core_attention = TreeAttention
    return layers


def _check_division(hf_config: PretrainedConfig, layout: TrainerConfig, directory: Path) -> None:
    """What the layout divides must be a multiple of what it is divided by."""
    tensor = "tensor_model_parallel_size", layout.tensor_model_parallel_size
    virtual = layout.virtual_pipeline_model_parallel_size or 1
    pipeline = "pipeline_model_parallel_size" + (" x virtual" if virtual > 1 else "")
    divided = [
        ("num_attention_heads", *tensor),
        ("num_key_value_heads", *tensor),
        ("intermediate_size", *tensor),
        ("vocab_size", *tensor),
        ("num_hidden_layers", pipeline, layout.pipeline_model_parallel_size * virtual),
    ]
    if layout.expert_model_parallel_size > 1:
        divided.append(("num_experts", "expert_model_parallel_size", layout.expert_model_parallel_size))
    if getattr(hf_config, "num_experts", 0) and layout.tensor_model_parallel_size > 1 and not layout.sequence_parallel:
        raise UnsupportedModel(
            f"{directory}: experts and tensor parallelism together need trainer.sequence_parallel=true"
        )
    for name, key, parts in divided:
        size = getattr(hf_config, name, 0)
        if size % parts or size < parts:
            raise UnsupportedModel(f"{directory / 'config.json'}: {name} {size} cannot be divided by {key} {parts}")


def _read_rope(hf_config: PretrainedConfig, directory: Path) -> None:
    """Put the RoPE base where mbridge looks for it: transformers 5 keeps it in `rope_parameters`."""
    rope = hf_config.rope_parameters
    if rope["rope_type"] != "default":
        raise UnsupportedModel(
            f"{directory / 'config.json'}: rope_parameters.rope_type is {rope['rope_type']!r}; "
            "only 'default' is supported"
        )
    hf_config.rope_theta = rope["rope_theta"]
