"""Models for the real-engine tests: a tiny random Llama made on the spot, and the pretrained one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rlcore.pretrained import smollm2_directory


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return smollm2_directory()


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Path:
    """A two-layer Llama of random weights, tied embeddings, with the pretrained model's tokenizer."""
    return save_tiny_llama(tmp_path_factory.mktemp("tiny-llama"), tokenizer_from=smollm2, seed=0)


def save_tiny_llama(directory: Path, *, tokenizer_from: Path, seed: int, vocab_size: int = 49152) -> Path:
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_from)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,  # of 32 channels, the fewest that vLLM's attention on CPU takes
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
