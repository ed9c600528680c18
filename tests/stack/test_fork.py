"""A fork of a real training: the same up to the fork, another after it, and both are whole."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from rlcore.store import RunStore
from tests.stack.pipeline import REPOSITORY, RLVR, store_of, tiny_training, weights

pytestmark = pytest.mark.timeout(300)


def rlvr(*command: str) -> str:
    done = subprocess.run([*RLVR, *command], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def sampled(store: RunStore, iteration: int) -> list[list[object]]:
    entry = store.find(iteration, "generate")
    assert entry is not None
    rollouts = store.read_batch(entry.output)
    return [rollouts[column].to_list() for column in ("prompt_ids", "response_ids", "rollout_logprobs")]


def test_a_fork_trains_on_from_the_checkpoint_under_its_own_settings(tmp_path: Path, tiny_llama: Path) -> None:
    overrides = tiny_training(tmp_path, tiny_llama)
    rlvr("train", "arithmetic", *overrides, "run=origin")
    origin, before = store_of(overrides, "origin"), weights(store_of(overrides, "origin"), 4)

    said = rlvr("fork", origin.url, "--from", "2", "--run", "slower", "trainer.learning_rate=1e-4")
    assert "trainer.learning_rate: 0.001 → 0.0001" in said
    fork = store_of(overrides, "slower")
    assert said.splitlines()[-1] == f"next: rlvr train {fork.url}/config.yaml"
    assert "4 iterations" in rlvr("train", f"{fork.url}/config.yaml").splitlines()[-1]

    past = [entry for entry in origin.ledger() if entry.iteration <= 2]
    assert fork.ledger()[: len(past)] == past
    assert [entry.iteration for entry in fork.ledger() if entry.stage == "update"] == [1, 2, 3, 4]
    # The responses show that the weights of the fork are those of the origin after two updates.
    assert sampled(fork, 3) == sampled(origin, 3)
    assert sampled(fork, 4)[:1] == sampled(origin, 4)[:1] and sampled(fork, 4) != sampled(origin, 4)
    after = weights(fork, 4)
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(origin, 4).items())
    for store in (origin, fork):
        assert rlvr("verify", store.url).endswith("nothing wrong\n")
