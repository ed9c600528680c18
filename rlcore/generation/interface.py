"""What the stages need of an inference engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from rlcore.weights.bucket import Bucket

FinishReason = Literal["stop", "length", "abort"]


class EngineDied(RuntimeError):
    """The engine's process is gone, or never came up. `start` makes a new one, at policy version 0."""


class EngineUnfit(ValueError):
    """The engine cannot serve what the configuration asks of it; started again, it would end the same way."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One response to sample. Greedy where temperature is 0."""

    request_id: str
    prompt_ids: Sequence[int]
    max_tokens: int
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True)
class Generation:
    """One sampled response.

    `logprobs[t]` is log μ(response_ids[t]) of the distribution sampled from, temperature applied
    (temperature 1 where sampling was greedy); `policy_versions[t]` the number of optimizer updates
    behind the weights that sampled it. The end-of-turn token is part of the response.
    """

    request_id: str
    response_ids: list[int]
    logprobs: list[float]
    policy_versions: list[int]
    finish_reason: FinishReason
    text: str
    seconds: float


class Generator(Protocol):
    """An engine that samples responses under weights it can be given anew."""

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """One generation per request, in the order of the requests."""
        ...

    async def abort(self, request_ids: Sequence[str]) -> None:
        """End running requests: they return what they have, with finish_reason `abort`."""
        ...

    async def score(self, prompt_ids: Sequence[int], response_ids: Sequence[int], temperature: float) -> list[float]:
        """Log-probabilities of given response tokens under the current weights."""
        ...

    async def start_update(self) -> None:
        """Stop between two tokens, to be given all weights anew by `load_bucket`."""
        ...

    async def load_bucket(self, bucket: Bucket) -> None:
        """Load some of the weights. Their memory is read when this returns."""
        ...

    async def finish_update(self, policy_version: int) -> None:
        """All weights are there: serve them, as those of that version."""
        ...

    async def policy_version(self) -> int:
        """Number of optimizer updates behind the weights that are served."""
        ...
