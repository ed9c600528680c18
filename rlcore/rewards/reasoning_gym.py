"""Answers to reasoning-gym tasks, scored by the task's own verifier."""

from __future__ import annotations

import json

from reasoning_gym import get_score_answer_fn
from reasoning_gym.utils import extract_answer

from rlcore.rewards.interface import Score

EXECUTES_THE_ANSWER = frozenset(
    {
        "binary_matrix",
        "countdown",
        "intermediate_integration",
        "n_queens",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
        "spiral_matrix",
        "string_insertion",
    }
)
"""Tasks of reasoning-gym 0.1.25 whose verifier passes the answer to `eval` or to sympy's `parse_expr`, which evals."""


def grade(response_text: str, ground_truth: str) -> Score:
    """The verifier's score, in [0, 1] with partial credit where the task gives it.

    The answer is what stands in the last `<answer>…</answer>`, or without one the whole response.

    Args:
        ground_truth: JSON of the entry as reasoning-gym generated it: question, answer, metadata with
            `source_dataset`.

    Components: the score, under the name of the task.

    Raises:
        ValueError: the ground truth is no such entry, or its task would execute the model's answer as code.
    """
    entry = json.loads(ground_truth)
    try:
        task = entry["metadata"]["source_dataset"]
    except (KeyError, TypeError):
        raise ValueError(
            f"ground truth {ground_truth[:80]!r} is not a reasoning-gym entry: it needs question, answer "
            "and metadata with source_dataset"
        ) from None
    if task in EXECUTES_THE_ANSWER:
        raise ValueError(
            f"the verifier of reasoning-gym task {task} executes the answer as Python code; use another task"
        )
    answer = extract_answer(response_text)
    score = float(get_score_answer_fn(task)(response_text.strip() if answer is None else answer, entry))
    return Score(score, {task: score})
