"""Reward functions as a user writes them."""

from __future__ import annotations

import os
import time

import numpy as np


def length(response_text: str, ground_truth: str) -> float:
    return len(response_text) / 10


def parts(response_text: str, ground_truth: str) -> dict[str, object]:
    return {"reward": np.float32(0.5), "right": response_text == ground_truth, "length": len(response_text)}


def words(response_text: str, ground_truth: str) -> str:
    return "good"


def incomplete(response_text: str, ground_truth: str) -> dict[str, float]:
    return {"right": 1.0}


def endless(response_text: str, ground_truth: str) -> float:
    return float("inf")


def alone(response_text: str, ground_truth: str) -> float:
    """1 if no other process is in here meanwhile.

    Args:
        ground_truth: a path at which there is a file while one is.
    """
    try:
        os.close(os.open(ground_truth, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return 0.0
    time.sleep(0.02)
    os.unlink(ground_truth)
    return 1.0
