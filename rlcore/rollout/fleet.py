"""Which engine gets a request: the one with the least to do, and rather one that knows the prompt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rlcore.generation.interface import Generation, GenerationRequest

SMOOTHING = 0.02
"""Weight of a response in the running mean of their lengths."""


class Engine(Protocol):
    """What generates: a Generator (rlcore/generation/interface.py), one request at a time."""

    async def generate(self, request: GenerationRequest) -> Generation:
        """
        Raises:
            EngineDied: it is gone; so are all its requests.
        """
        ...

    async def abort(self, request_ids: Sequence[str]) -> None:
        """End running requests: they return what they have, with finish_reason `abort`."""
        ...


@dataclass(eq=False)
class Member:
    """An engine and what it is at."""

    name: str
    engine: Engine
    capacity: int
    """Requests at once."""
    running: dict[str, float] = field(default_factory=dict)
    """By request_id, the tokens that it is expected to cost."""
    outstanding: float = 0.0
    """Sum of those."""
    prompts: Counter[tuple[int, ...]] = field(default_factory=Counter)
    """How many running requests have a prompt: its keys and values are there."""


class Fleet:
    """The engines that are there."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self._mean_length: float | None = None

    def attach(self, engines: Mapping[str, Engine], capacity: int) -> None:
        """These engines are there, and no others. One that was there before goes on with what it is at."""
        self.members = {
            name: self.members[name]
            if name in self.members and self.members[name].engine == engine
            else Member(name, engine, capacity)
            for name, engine in engines.items()
        }

    def remove(self, member: Member) -> None:
        """It is gone."""
        if self.members.get(member.name) is member:
            del self.members[member.name]

    def choose(self, request: GenerationRequest) -> Member | None:
        """The engine for which the request is least work on top of what it has; None if all are full.

        Work is measured in tokens: those of the prompt where it is not there yet, and of a response of mean length.
        """
        free = [member for member in self.members.values() if len(member.running) < member.capacity]
        return min(free, key=lambda member: member.outstanding + self._cost(member, request), default=None)

    def began(self, member: Member, request: GenerationRequest) -> None:
        cost = self._cost(member, request)
        member.running[request.request_id] = cost
        member.outstanding += cost
        member.prompts[tuple(request.prompt_ids)] += 1

    def ended(self, member: Member, request: GenerationRequest, tokens: int | None) -> None:
        """
        Args:
            tokens: of the response, if it is complete.
        """
        member.outstanding -= member.running.pop(request.request_id)
        prompt = tuple(request.prompt_ids)
        member.prompts[prompt] -= 1
        if not member.prompts[prompt]:
            del member.prompts[prompt]
        if tokens is not None:
            mean = self._mean_length
            self._mean_length = tokens if mean is None else mean + SMOOTHING * (tokens - mean)

    def _cost(self, member: Member, request: GenerationRequest) -> float:
        prompt = 0 if tuple(request.prompt_ids) in member.prompts else len(request.prompt_ids)
        return prompt + (request.max_tokens if self._mean_length is None else self._mean_length)
