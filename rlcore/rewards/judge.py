"""A language model as the judge: any endpoint that speaks OpenAI's chat completions, vLLM's server among them.

The prompt is a rubric with `{prompt}`, `{response}` and `{ground_truth}` in it; the judge's verdict is the last yes or
no, or the last number from 0 to 10, of its reply.
"""

from __future__ import annotations

import os
import re
from typing import Any, Literal

import httpx

from rlcore.rewards.http import SHOWN, post
from rlcore.rewards.interface import Score, Task

Scale = Literal["yes_no", "0_to_10"]
RUBRICS: dict[Scale, str] = {
    "yes_no": (
        "Question:\n{prompt}\n\nReference answer:\n{ground_truth}\n\nAnswer of a student:\n{response}\n\n"
        "Does the student's answer agree with the reference answer? End your reply with YES or NO."
    ),
    "0_to_10": (
        "Question:\n{prompt}\n\nReference answer:\n{ground_truth}\n\nAnswer of a student:\n{response}\n\n"
        "How good is the student's answer? End your reply with a number from 0, useless, to 10, perfect."
    ),
}
VERDICT = re.compile(r"\b(yes|no)\b", re.IGNORECASE)
NUMBER = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)(?:\s*/\s*10)?(?![\w])")


async def ask(
    client: httpx.AsyncClient,
    task: Task,
    *,
    url: str,
    model: str,
    scale: Scale = "yes_no",
    rubric: str | None = None,
    max_tokens: int = 512,
    api_key_variable: str | None = None,
) -> Score:
    """1 for yes and 0 for no, or a tenth of the number.

    Args:
        url: of the API, such as http://127.0.0.1:8000/v1.
        model: as the endpoint calls it.
        rubric: the prompt, in place of RUBRICS[scale].
        api_key_variable: the environment variable that has the key, if the endpoint wants one.

    Components: `verdict`, the reward.

    Raises:
        as `rlcore.rewards.http.post`.
        ValueError: the reply has no verdict, or the variable is not set.
    """
    question = (rubric or RUBRICS[scale]).format(
        prompt=task.prompt_text, response=task.response_text, ground_truth=task.ground_truth
    )
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0.0,
        "max_tokens": max_tokens,
    }
    answer = await post(client, f"{url.rstrip('/')}/chat/completions", body, _authorization(api_key_variable))
    reward = verdict_of(_reply(url, answer), scale)
    return Score(reward, {"verdict": reward})


def verdict_of(reply: str, scale: Scale) -> float:
    """
    Raises:
        ValueError: there is none in it.
    """
    if scale == "yes_no":
        if verdicts := VERDICT.findall(reply):
            return float(verdicts[-1].lower() == "yes")
        raise ValueError(f"the judge said neither yes nor no: {reply[-SHOWN:]!r}")
    numbers = [float(number) for number in NUMBER.findall(reply)]
    if numbers and numbers[-1] <= 10:
        return numbers[-1] / 10
    raise ValueError(f"the judge's reply does not end with a number from 0 to 10: {reply[-SHOWN:]!r}")


def _reply(url: str, answer: Any) -> str:
    try:
        content = answer["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise ValueError(f"{url} answered no chat completion: {str(answer)[:SHOWN]}") from None
    return content or ""


def _authorization(variable: str | None) -> dict[str, str]:
    if variable is None:
        return {}
    if variable not in os.environ:
        raise ValueError(f"the judge's key is to be in the environment variable {variable}, which is not set")
    return {"Authorization": f"Bearer {os.environ[variable]}"}
