"""What the tests of an engine ask of it."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from safetensors.torch import load_file

from rlcore.config import Config
from rlcore.generation.interface import Generation
from tests.stack.generation import engine_config

TOLERANCE = 1e-3
"""Nats, between the engine's log-probabilities and those of transformers or the trainer, in float32."""
LONG = 320
"""Tokens, the most that a response may have."""


def config_around(model: Path) -> Config:
    return engine_config(model, dtype="float32", prompt_length=32, response_length=LONG)


def weights_of(model: Path) -> dict[str, torch.Tensor]:
    return load_file(model / "model.safetensors")


def engine_process(log: Path) -> int:
    """Process id of the engine that writes this log. (This process has several engines.)"""
    return int(re.findall(r"EngineCore pid=(\d+)", log.read_text())[-1])


def tokens(generations: list[Generation]) -> list[tuple[list[int], list[float]]]:
    return [(generation.response_ids, generation.logprobs) for generation in generations]
