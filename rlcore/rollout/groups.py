"""A prompt and its responses, from request to grade."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from rlcore.generation.interface import Generation, GenerationRequest
from rlcore.rewards.interface import Outcome

Reason = Literal["stale", "interrupted", "surplus", "rejected", "lost"]
"""Why tokens were generated in vain: the bound on versions; a change of weights, where that ends what is under way; the
batch was complete without them; the filter; the engine is gone."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A row of a PromptBatch, as far as rollouts need it."""

    prompt_id: str
    domain: str
    prompt_ids: tuple[int, ...]
    ground_truth: str
    text: str
    """Its last message."""


@dataclass(slots=True, eq=False)
class Response:
    """One response of a group."""

    group: Group = field(repr=False)
    index: int
    """In the group."""
    request: GenerationRequest
    version: int | None = None
    """Of the policy when it was started; None while it waits."""
    attempt: int = 0
    """Grows with every start and reset: what comes back for an earlier one is not this response's."""
    generation: Generation | None = None
    outcome: Outcome | None = None
    reset_for: Reason = "lost"
    """Why its last attempt was in vain."""

    @property
    def run_id(self) -> str:
        """What the engine knows its present attempt by."""
        return f"{self.request.request_id}.{self.attempt}"

    @property
    def is_running(self) -> bool:
        return self.version is not None and self.generation is None

    @property
    def tokens(self) -> int:
        """Generated, as far as is known: those of a running response are not."""
        return len(self.generation.response_ids) if self.generation is not None else 0

    def reset(self, reason: Reason) -> None:
        self.version = self.generation = self.outcome = None
        self.attempt += 1
        self.reset_for = reason


@dataclass(slots=True, eq=False)
class Group:
    """The responses to one prompt."""

    number: int
    """Of the prompt, in the order in which they were handed over."""
    lane: str
    prompt: Prompt
    responses: list[Response] = field(default_factory=list)
    passed_over: int = 0
    """Batches that had younger prompts of its lane instead."""

    @classmethod
    def of(cls, number: int, lane: str, prompt: Prompt, requests: Iterable[GenerationRequest]) -> Group:
        group = cls(number, lane, prompt)
        group.responses = [Response(group, index, request) for index, request in enumerate(requests)]
        return group

    @property
    def is_complete(self) -> bool:
        return all(response.outcome is not None for response in self.responses)

    @property
    def version(self) -> int:
        """The oldest that a response was started under. Only of a complete group."""
        return min(response.version for response in self.responses if response.version is not None)

    @property
    def tokens(self) -> int:
        return sum(response.tokens for response in self.responses)

    @property
    def rewards(self) -> list[float]:
        """Of the responses that were scored."""
        outcomes = [response.outcome for response in self.responses]
        return [outcome.reward for outcome in outcomes if outcome is not None and outcome.reward is not None]


@dataclass(frozen=True, slots=True)
class Batch:
    """What one iteration trains on, and what it cost."""

    iteration: int
    groups: list[Group]
    """In the order in which their prompts were handed over."""
    rejected: list[Group]
    waste: Counter[Reason]
    """Response tokens that nobody trains on."""
