"""What the engine tests share: a configuration around a model, requests, and what transformers says of a response."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from rlcore.config import Config
from rlcore.generation.interface import GenerationRequest
from rlcore.generation.vllm import VLLMGenerator
from rlcore.weights.shared_memory import SharedMemory, in_buckets


def engine_config(
    model: Path, *, dtype: Literal["bfloat16", "float32"], prompt_length: int, response_length: int
) -> Config:
    """A configuration of which the engine reads model, lengths and hardware."""
    return Config.model_validate(
        {
            "run": "engine-test",
            "iterations": 1,
            "model": {"path": str(model), "dtype": dtype},
            "data": {
                "train": ["train.jsonl"],
                "held_out": ["held_out.jsonl"],
                "prompt_length": prompt_length,
                "domain_interleave_probs": {"arithmetic": 1.0},
            },
            "rollout": {
                "rollout_batch_size": 4,
                "num_return_sequences_in_group": 4,
                "response_length": response_length,
            },
            "rewards": {"arithmetic": {"grader": "math"}},
            "hardware": {
                "trainer_threads": 1,
                "engine_threads": 1,
                "kv_cache_gib": 0.25,
                "max_num_seqs": 64,
                "engine_gpus": 0.4,
            },
        }
    )


def requests(
    count: int, *, max_tokens: int = 16, temperature: float = 1.0, prefix: str = "request"
) -> list[GenerationRequest]:
    """Requests with prompts of 6 to 25 tokens, two requests to a prompt, a seed each."""
    return [
        GenerationRequest(
            request_id=f"{prefix}{index}",
            prompt_ids=[100 * (index // 2 % 20) + token for token in range(1, 7 + index // 2 % 20)],
            max_tokens=max_tokens,
            temperature=temperature,
            seed=index,
        )
        for index in range(count)
    ]


async def give(engine: VLLMGenerator, weights: Mapping[str, torch.Tensor], policy_version: int) -> None:
    """Update the engine to these weights, in buckets of a megabyte."""
    memory = SharedMemory()
    await engine.start_update()
    for tensors in in_buckets(weights.items(), 2**20):
        await engine.load_bucket(memory.write(tensors))
    await engine.finish_update(policy_version)


def reference_logits(model: Path, prompt_ids: list[int], response_ids: list[int]) -> torch.Tensor:
    """Transformers' logits (T, V) of the positions that predict the response."""
    network: PreTrainedModel = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        logits: torch.Tensor = network(torch.tensor([[*prompt_ids, *response_ids]])).logits[0]
    return logits[len(prompt_ids) - 1 : -1]


def reference_logprobs(model: Path, prompt_ids: list[int], response_ids: list[int], temperature: float) -> torch.Tensor:
    """Transformers' log-probabilities (T,) of the response."""
    logprobs = (reference_logits(model, prompt_ids, response_ids) / temperature).log_softmax(-1)
    return logprobs.gather(-1, torch.tensor(response_ids)[:, None])[:, 0]
