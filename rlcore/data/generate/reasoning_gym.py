"""Puzzles by reasoning-gym, which verifies the answers too."""

from __future__ import annotations

from typing import Any

from rlcore.data.generate.split import SEED, Split
from rlcore.data.reasoning_gym import SURPLUS, problems, row

TASKS: dict[str, dict[str, Any]] = {
    "chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
    "gcd": {"min_value": 2, "max_value": 30},
    "lcm": {"min_value": 2, "max_value": 12},
    "letter_counting": {"min_words": 2, "max_words": 3},
    "simple_equations": {"max_terms": 2, "max_value": 9, "operators_weights": [1, 0, 0]},
    "spell_backward": {"min_word_len": 3, "max_word_len": 4},
}
TASK_ROWS = (50, 16)


def reasoning_gym_mix() -> Split:
    """Six easy tasks; the ground truth is the whole entry, which the task's verifier scores with."""
    split = Split([], [])
    train_count, held_out_count = TASK_ROWS
    for task, parameters in TASKS.items():
        entries = problems(task, SEED, SURPLUS * sum(TASK_ROWS), parameters)
        rows = [row(entry, "reasoning_gym", "Answer with nothing but the result.") for entry in entries]
        split.held_out.extend(rows[:held_out_count])
        split.train.extend(rows[held_out_count : held_out_count + train_count])
    return split
