"""Puzzles by reasoning-gym, which verifies the answers too."""

from __future__ import annotations

import re
from typing import Any

import reasoning_gym

from rlcore.data.generate.split import SEED, Split

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
        entries = reasoning_gym.create_dataset(task, seed=SEED, size=10 * sum(TASK_ROWS), **parameters)
        # The same words in another order (4, 6 and 6, 4) are the same problem.
        problems = {tuple(sorted(re.findall(r"\w+", entry["question"]))): entry for entry in entries}
        rows = [
            {
                "domain": "reasoning_gym",
                "tag": task,
                "prompt": f"{entry['question'].strip()} Answer with nothing but the result.",
                "ground_truth": entry,
            }
            for entry in problems.values()
        ]
        split.held_out.extend(rows[:held_out_count])
        split.train.extend(rows[held_out_count : held_out_count + train_count])
    return split
