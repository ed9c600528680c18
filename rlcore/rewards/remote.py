"""A reward service of the user's own, asked over HTTP.

It is sent `{"prompt": …, "response": …, "ground_truth": …, "domain": …}` and answers `{"reward": 0.5, "components":
{"name": 1.0, …}}`, where the components may be missing.
"""

from __future__ import annotations

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rlcore.rewards.http import post
from rlcore.rewards.interface import Score, Task


class Answer(BaseModel):
    """Other keys stay unread."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    reward: float
    components: dict[str, float] = Field(default_factory=dict)


async def ask(client: httpx.AsyncClient, task: Task, *, url: str) -> Score:
    """What the service at the URL says.

    Raises:
        as `rlcore.rewards.http.post`.
        ValueError: the answer is of another form, or not finite.
    """
    body = {
        "prompt": task.prompt_text,
        "response": task.response_text,
        "ground_truth": task.ground_truth,
        "domain": task.domain,
    }
    answer = await post(client, url, body, {})
    try:
        given = Answer.model_validate(answer)
    except ValidationError:
        raise ValueError(
            f'{url} answered {str(answer)[:200]}; expected {{"reward": number, "components": {{name: number}}}}'
        ) from None
    return Score(given.reward, given.components)
