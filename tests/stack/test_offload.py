"""Device memory that is lent and taken back changes nothing that the trainer computes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rlcore.trainer.rank import TrainerRank
from tests.stack.training import train_batch, trainer_config, trainers_in_this_process, weights


@pytest.fixture(scope="module", autouse=True)
def _world() -> Iterator[None]:
    with trainers_in_this_process():
        yield


def lend(trainer: TrainerRank, lends: bool) -> None:
    """`offload` itself does nothing here, where the weights are in host memory anyway."""
    assert trainer.offload() == 0
    if lends:
        assert trainer.memory.lend() > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_trainer_goes_on_bit_for_bit_after_its_memory_was_lent(tiny_llama: Path, tmp_path: Path, dtype: str) -> None:
    """Whatever it does next takes the memory back: also before the first update, when there are no moments yet."""
    config = trainer_config(tiny_llama, dtype, trainer={"weight_decay": 0.1})
    trained = []
    for lends in (False, True):
        trainer = TrainerRank(config)
        for iteration in (1, 2):
            lend(trainer, lends)
            trainer.update(iteration, f"{iteration}", train_batch(seed=iteration))
        lend(trainer, lends)
        trainer.save_checkpoint(str(tmp_path / f"{lends}"))
        trainer = TrainerRank(config)
        lend(trainer, lends)
        trainer.load_checkpoint(str(tmp_path / f"{lends}"))
        lend(trainer, lends)
        scores = trainer.logprobs(train_batch())
        report = trainer.update(3, "3", train_batch(seed=3))
        lend(trainer, lends)
        trained.append((weights(trainer, tmp_path), scores, report["metrics"]["grad_norm"]))
    (kept, kept_scores, kept_norm), (lent, lent_scores, lent_norm) = trained
    assert all(torch.equal(kept[name], lent[name]) for name in kept)
    assert kept_scores.equals(lent_scores)
    assert kept_norm == lent_norm


@pytest.mark.parametrize(("dtype", "bytes_each"), [("float32", 4 + 4 + 8), ("bfloat16", 2 + 4 + 4 + 8)])
def test_weights_gradients_main_weights_and_moments_are_lent(tiny_llama: Path, dtype: str, bytes_each: int) -> None:
    trainer = TrainerRank(trainer_config(tiny_llama, dtype))
    trainer.update(1, "1", train_batch())
    memory = trainer.memory
    lent = memory.lend()
    parameters = list(trainer.pieces[0].parameters())
    assert all(parameter.untyped_storage().nbytes() == 0 for parameter in parameters)
    assert all(parameter.main_grad.untyped_storage().nbytes() == 0 for parameter in parameters)
    assert memory.lend() == 0
    memory.take_back()
    memory.take_back()
    # And what the buffers are padded by.
    assert lent == pytest.approx(bytes_each * sum(parameter.numel() for parameter in parameters), rel=0.01)
