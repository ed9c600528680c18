"""Asking a service for a grade over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from rlcore.rewards.interface import InfraFault

SHOWN = 200
"""Characters of an answer in an error."""


async def post(client: httpx.AsyncClient, url: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
    """The JSON that it answers.

    Raises:
        InfraFault: it cannot be reached, is overloaded, or failed: another attempt may be answered.
        ValueError: it refuses the question, or answers something else than JSON.
    """
    try:
        answer = await client.post(url, json=body, headers=dict(headers))
    except httpx.TransportError as error:
        raise InfraFault(f"{url}: {type(error).__name__}: {error}") from error
    if answer.status_code == httpx.codes.TOO_MANY_REQUESTS or answer.is_server_error:
        raise InfraFault(f"{url} answered {answer.status_code}: {answer.text[:SHOWN]}")
    if not answer.is_success:
        raise ValueError(f"{url} refused the question with {answer.status_code}: {answer.text[:SHOWN]}")
    try:
        return answer.json()
    except ValueError:
        raise ValueError(f"{url} answered no JSON: {answer.text[:SHOWN]!r}") from None
