"""Questions with lettered choices, as those of CrossThink-QA: the answer is a letter in `\\boxed{}`.

Prompt: the question, its choices as lines `A. …`, and that the letter of the right one is wanted in `\\boxed{}`.
"""

from __future__ import annotations

import re
from typing import Literal

from rlcore.rewards.interface import Score

BOX = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}")
STATED = re.compile(r"\banswer\b", re.IGNORECASE)
LETTER = re.compile(r"(?<![A-Za-z])\(?([A-Z])\)?(?![A-Za-z])")
CHOICE = re.compile(r"[A-Z]")

RewardType = Literal["accuracy", "loose", "soft", "strict"]
# The first three rows are ROLL's (crossthinkqa_rule_reward_worker.py).
REWARDS: dict[RewardType, dict[tuple[bool, bool], float]] = {
    # by (correct, boxed)
    "loose": {(True, True): 1.0, (True, False): 1.0, (False, True): -1.0, (False, False): -1.0},
    "soft": {(True, True): 1.0, (True, False): 0.5, (False, True): -0.5, (False, False): -1.0},
    "strict": {(True, True): 1.0, (True, False): -1.0, (False, True): -1.0, (False, False): -1.0},
    "accuracy": {(True, True): 1.0, (True, False): 1.0, (False, True): 0.0, (False, False): 0.0},
}


def grade(response_text: str, ground_truth: str, *, reward_type: RewardType = "accuracy") -> Score:
    """Whether the letter is right, and whether it is boxed: ROLL's table, or 1 and 0 for the letter alone.

    The letter is the first capital one that stands alone in the last `\\boxed{}`, or where there is no box, behind the
    last "answer" of the text.

    Args:
        ground_truth: the letter; what follows it, such as the text of the choice, is ignored.

    Components: `correct`, and `boxed`.

    Raises:
        ValueError: the ground truth does not begin with a capital letter.
    """
    choice = ground_truth.strip()[:1]
    if not CHOICE.fullmatch(choice):
        raise ValueError(f"ground truth {ground_truth[:80]!r} does not begin with the letter of a choice, A to Z")
    boxes = BOX.findall(response_text)
    letter = LETTER.search(boxes[-1] if boxes else _behind_the_last_answer(response_text))
    correct, boxed = letter is not None and letter[1] == choice, bool(boxes)
    return Score(REWARDS[reward_type][correct, boxed], {"correct": float(correct), "boxed": float(boxed)})


def _behind_the_last_answer(text: str) -> str:
    stated = list(STATED.finditer(text))
    return text[stated[-1].end() :] if stated else ""
