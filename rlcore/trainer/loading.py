"""From a Hugging Face directory to this rank's pieces of a Megatron-Core model, by mbridge."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch
from mbridge import AutoBridge
from mbridge.core.bridge import Bridge
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from transformers import AutoConfig, PretrainedConfig

from rlcore.config import TrainerConfig
from rlcore.trainer.attention import TreeAttention
from rlcore.trainer.elementwise import RMSNorm, SwiGLU
from rlcore.trainer.layout import Layout
from rlcore.trainer.model import ResponseScorer, ValueModel

LOCAL_ARGUMENTS = {
    "use_cpu_initialization": True,
    "masked_softmax_fusion": False,
    "persist_layer_norm": False,
    "bias_activation_fusion": False,
    "bias_dropout_fusion": False,
    "use_te_activation_func": True,  # Which is whatever the specification of the layers names.
    "moe_grouped_gemm": False,
}
"""Settings of TransformerConfig for layers without Transformer Engine."""

RECOMPUTE: dict[str, dict[str, Any]] = {
    "none": {},
    "selective": {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]},
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}
"""Settings of TransformerConfig for `trainer.recompute`."""

LOCAL_NORMS = {
    "input_layernorm.weight": ["model.layers.{layer_number}.input_layernorm.weight"],
    "pre_mlp_layernorm.weight": ["model.layers.{layer_number}.post_attention_layernorm.weight"],
}
"""The norms of Megatron's local layers. mbridge knows those of Transformer Engine, which sit in the linears."""

LOCAL_EXPERT = re.compile(r"experts\.local_experts\.(\d+)\.(linear_fc[12])\.weight")


class UnsupportedModel(ValueError):
    """The Hugging Face model has something that this trainer does not compute."""


M = TypeVar("M", bound=GPTModel)


def load_policy(
    settings: TrainerConfig, directory: Path, dtype: torch.dtype, *, temperature: float, entropy_gradient: bool
) -> tuple[list[ResponseScorer], Bridge]:
    """This rank's pieces of the model of a Hugging Face directory, in `dtype`, and the bridge that names its weights.

    Raises:
        UnsupportedModel: an architecture mbridge does not map, a position encoding other than plain RoPE, or one that
            cannot be divided as the layout says.
    """
    make = partial(ResponseScorer, temperature=temperature, entropy_gradient=entropy_gradient)
    return _load(make, settings, directory, dtype)


def load_critic(settings: TrainerConfig, directory: Path, dtype: torch.dtype) -> tuple[list[ValueModel], Bridge]:
    """As `load_policy`, under a value head."""
    pieces, bridge = _load(ValueModel, settings, directory, dtype)
    for piece in pieces:
        piece.add_value_head()
    return pieces, bridge


def _load(
    make: Callable[..., M], settings: TrainerConfig, directory: Path, dtype: torch.dtype
) -> tuple[list[M], Bridge]:
    hf_config = AutoConfig.from_pretrained(directory)
    try:
        bridge = AutoBridge.from_config(hf_config, dtype=dtype)
    except ValueError as error:
        raise UnsupportedModel(f"{directory}: {error}") from None
    _read_rope(hf_config, directory)
    check_division(hf_config, settings, directory)
    cuda = torch.cuda.is_available()
    bridge.set_extra_args(
        # Weights come from the directory, but it is in initialising them that Megatron marks the divided ones.
        perform_initialization=settings.tensor_model_parallel_size > 1,
        calculate_per_token_loss=True,
        sequence_parallel=settings.sequence_parallel,
        **RECOMPUTE[settings.recompute],
        **({} if uses_transformer_engine() else LOCAL_ARGUMENTS),
    )
    tied = hf_config.tie_word_embeddings
    head = "model.embed_tokens.weight" if tied else "lm_head.weight"
    bridge._DIRECT_MAPPING = {**bridge._DIRECT_MAPPING, "output_layer.weight": head}
    bridge._OTHER_MAPPING = {**bridge._OTHER_MAPPING, **LOCAL_NORMS}
    bridge._MLP_MAPPING = {**bridge._MLP_MAPPING, **LOCAL_NORMS}
    _name_local_experts(bridge)
    stages = settings.virtual_pipeline_model_parallel_size
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
    """Megatron's layers of this pipeline stage, with attention over trees; local ones with norms and gates of ours."""
    fused = uses_transformer_engine()
    layers = get_gpt_decoder_block_spec(config, use_transformer_engine=fused, vp_stage=stage)
    for layer in layers.layer_specs:
        layer.submodules.self_attention.submodules.core_attention = TreeAttention
        if not fused:
            _replace(layer.submodules, WrappedTorchNorm, RMSNorm)
            for mlp in _mlps(layer.submodules.mlp):
                mlp.activation_func = SwiGLU
    if not fused:
        layers.layer_norm = RMSNorm
    return layers


def uses_transformer_engine() -> bool:
    """On a GPU, where it is installed: requirements/gpu.txt has none, since it is compiled on the spot."""
    return torch.cuda.is_available() and find_spec("transformer_engine") is not None


def _replace(submodules: Any, module: type, by: type) -> None:
    """Everywhere in a specification."""
    for name, value in vars(submodules).items():
        if value is module:
            setattr(submodules, name, by)
        elif isinstance(value, ModuleSpec) and value.submodules is not None:
            _replace(value.submodules, module, by)


def _mlps(spec: ModuleSpec) -> Iterator[MLPSubmodules]:
    """A layer's, or its experts'."""
    if isinstance(spec.submodules, MLPSubmodules):
        yield spec.submodules
        return
    for part in vars(spec.submodules).values():
        if isinstance(part, ModuleSpec):
            yield from _mlps(part)


def check_division(hf_config: PretrainedConfig, layout: Layout, directory: Path) -> None:
    """What the layout divides must be a multiple of what it is divided by.

    Raises:
        UnsupportedModel: it is not.
    """
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
    if getattr(hf_config, "num_experts", 0):
        divided.append(("moe_intermediate_size", *tensor))
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
