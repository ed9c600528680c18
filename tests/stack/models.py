"""Tiny models of random weights, one of each family that the trainer computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

SHAPE: dict[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
FAMILIES: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SHAPE, tie_word_embeddings=False),
    "qwen2": Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SHAPE, tie_word_embeddings=True),
    "qwen3-moe": Qwen3MoeConfig(**SHAPE, **EXPERTS, tie_word_embeddings=False),
}


def save_tiny_model(family: str, directory: Path, *, tokenizer_from: Path) -> Path:
    """A Hugging Face directory."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(FAMILIES[family]).save_pretrained(directory)
    AutoTokenizer.from_pretrained(tokenizer_from).save_pretrained(directory)
    return directory
