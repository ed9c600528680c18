"""What rows of a RolloutBatch have beside what a test is about."""

from __future__ import annotations

from typing import Any

PROMPT_AND_GRADE: dict[str, Any] = {
    "prompt_text": "1 + 1?",
    "ground_truth": "2",
    "grade": {"reward": None, "reward_status": "infra_error", "components": [], "detail": "", "seconds": 0.0},
    "graded_under": "",
}
