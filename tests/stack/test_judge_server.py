"""A judge of our own: a real vLLM server, started by the router of rewards."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import polars as pl
import psutil
import pytest

from rlcore.pretrained import smollm2_directory
from rlcore.rewards.interface import ServicesFailed
from rlcore.rewards.router import RewardRouter
from rlcore.shaping.settings import RewardConfig
from tests.stack.conftest import save_tiny_llama

QUESTION = pl.DataFrame(
    {
        "sample_id": ["a"],
        "domain": ["essays"],
        "prompt_text": ["Write a line about rain."],
        "response_text": ["Rain falls on the roof."],
        "ground_truth": [""],
    }
)


def essays(model: str) -> dict[str, RewardConfig]:
    # What a small model is sure to answer.
    rubric = "What is 3 + 4? Answer with nothing but the result."
    options = {"model": model, "serve": {"context_length": 512}, "rubric": rubric, "scale": "0_to_10", "max_tokens": 12}
    grader = {"grader": "judge", "timeout_seconds": 60, "options": options}
    return {"essays": RewardConfig.model_validate(grader)}


def servers() -> list[psutil.Process]:
    """Of this process, with their engines."""
    return [each for each in psutil.Process().children(recursive=True) if "vllm" in " ".join(each.cmdline()).lower()]


@pytest.mark.timeout(300)
def test_a_judge_is_served_and_started_again_after_its_death_and_leaves_nothing() -> None:
    router = RewardRouter(essays(str(smollm2_directory())), 0)
    try:
        first = router.grade(QUESTION).row(0, named=True)
        assert (first["reward_status"], first["reward"]) == ("scored", 0.7), first
        before = servers()
        for process in before:
            os.kill(process.pid, signal.SIGKILL)
        psutil.wait_procs(before, timeout=10)
        assert router.grade(QUESTION)["reward_status"].to_list() == ["scored"]
        assert {process.pid for process in servers()}.isdisjoint(process.pid for process in before)
    finally:
        router.close()
    assert not [process for process in servers() if process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.timeout(120)
def test_a_model_that_cannot_be_served_is_said_with_the_servers_own_words(tmp_path: Path) -> None:
    model = save_tiny_llama(tmp_path / "model", tokenizer_from=smollm2_directory(), seed=0)
    (model / "config.json").write_text('{"model_type": "abacus"}')
    router = RewardRouter(essays(str(model)), 0)
    try:
        with pytest.raises(ServicesFailed, match="abacus"):
            router.grade(QUESTION)
    finally:
        router.close()
