"""Prompts, what is asked for them, and what comes back."""

from __future__ import annotations

from rlcore.generation.interface import FinishReason, Generation, GenerationRequest
from rlcore.rewards.interface import Outcome
from rlcore.rollout.book import Book
from rlcore.rollout.groups import Group, Prompt, Response

RIGHT = Outcome("scored", 1.0, {}, "", 0.0)
WRONG = Outcome("scored", 0.0, {}, "", 0.0)


def prompt(name: str, tokens: tuple[int, ...] = (1, 2, 3)) -> Prompt:
    return Prompt(name, "arithmetic", tokens, "", "")


def request(name: str, tokens: tuple[int, ...] = (1, 2, 3)) -> GenerationRequest:
    return GenerationRequest(name, list(tokens), 1000, 1.0, 0)


def hand_over(book: Book, *names: str, lane: str = "all", responses: int = 2) -> None:
    for name in names:
        book.hand_over(lane, prompt(name), [request(f"{name}#{index}") for index in range(responses)])


def generation(response: Response, tokens: int = 3, reason: FinishReason = "stop") -> Generation:
    """Under the version that it was started under."""
    return Generation(
        response.run_id, [0] * tokens, [0.0] * tokens, [response.version or 0] * tokens, reason, "", float(tokens)
    )


def start_all(book: Book) -> list[Response]:
    """Every response that may start does."""
    started = []
    while response := book.next_response():
        book.start(response)
        started.append(response)
    return started


def finish(book: Book, *responses: Response, outcome: Outcome = RIGHT, tokens: int = 3) -> None:
    for response in responses:
        book.generated(response, generation(response, tokens))
        book.graded(response, outcome)


def names(groups: list[Group]) -> list[str]:
    return [group.prompt.prompt_id for group in groups]
