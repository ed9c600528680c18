"""The trainer's model is the Hugging Face model: on the way in, and on the way out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from rlcore.batches import LogprobBatch, validate
from rlcore.trainer.loading import UnsupportedModel
from rlcore.trainer.rank import TrainerRank
from rlcore.trainer.updates import UpdateRefused
from tests.stack.training import dropped, train_batch, trainer_config, trainers_in_this_process


@pytest.fixture(scope="module", autouse=True)
def _world() -> Iterator[None]:
    with trainers_in_this_process():
        yield


def hugging_face_logprobs(model: PreTrainedModel, batch: pl.DataFrame, temperature: float) -> list[list[float]]:
    scores = []
    for prompt, response in batch.select("prompt_ids", "response_ids").iter_rows():
        with torch.no_grad():
            logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1].float()
        logprobs = (logits / temperature).log_softmax(-1)
        scores.append(logprobs.gather(-1, torch.tensor(response)[:, None])[:, 0].tolist())
    return scores


def largest_difference(ours: pl.Series, theirs: list[list[float]]) -> float:
    flat = torch.cat([torch.tensor(row) for row in theirs])
    return float((ours.explode().to_torch() - flat).abs().max())


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_equal_hugging_face_on_ragged_rows(smollm2: Path, temperature: float) -> None:
    batch = train_batch(rows=6)
    trainer = TrainerRank(
        trainer_config(smollm2, rollout={"temperature": temperature}, trainer={"max_tokens_per_micro_batch": 64}),
        trainable=False,
    )
    ours = validate(trainer.logprobs(batch), LogprobBatch)
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    assert ours["sample_id"].to_list() == batch["sample_id"].to_list()
    assert largest_difference(ours["logprobs"], hugging_face_logprobs(model, batch, temperature)) < 1e-4


def test_an_empty_response_has_no_logprobs(tiny_llama: Path) -> None:
    batch = train_batch(rows=3).with_columns(
        response_ids=pl.when(pl.col("sample_id") == "0-1").then([]).otherwise("response_ids")
    )
    logprobs = TrainerRank(trainer_config(tiny_llama), trainable=False).logprobs(batch)["logprobs"]
    assert logprobs.list.len().to_list() == batch["response_ids"].list.len().to_list()


def test_the_reference_does_not_train(tiny_llama: Path) -> None:
    reference = TrainerRank(trainer_config(tiny_llama), trainable=False)
    with pytest.raises(UpdateRefused, match="frozen reference"):
        reference.update(1, "digest", train_batch())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_exported_weights_are_the_tensors_of_the_model_directory(tiny_llama: Path, tmp_path: Path, dtype: str) -> None:
    file = tmp_path / "weights.safetensors"
    size = TrainerRank(trainer_config(tiny_llama, dtype), trainable=False).export_weights(str(file))
    assert size == file.stat().st_size
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    with safe_open(file, "pt") as ours, safe_open(tiny_llama / "model.safetensors", "pt") as theirs:
        assert set(ours.keys()) == set(theirs.keys())
        for name in theirs.keys():  # noqa: SIM118, it is not a mapping
            assert torch.equal(ours.get_tensor(name), theirs.get_tensor(name).to(getattr(torch, dtype))), name


def test_a_trained_model_goes_to_transformers_with_its_tokenizer(tiny_llama: Path, tmp_path: Path) -> None:
    target = tmp_path / "exported"
    trainer = TrainerRank(trainer_config(tiny_llama))
    batch = train_batch()
    before = trainer.logprobs(batch)
    trainer.update(1, "digest", batch)
    for _ in range(2):
        trainer.export_huggingface(str(target))
    ours = trainer.logprobs(batch)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    assert not ours.equals(before)
    assert largest_difference(ours["logprobs"], hugging_face_logprobs(model, batch, 1.0)) < 1e-4
    chat = [{"role": "user", "content": "1+1?"}]
    original, exported = (AutoTokenizer.from_pretrained(path) for path in (tiny_llama, target))
    assert exported.apply_chat_template(chat, tokenize=False) == original.apply_chat_template(chat, tokenize=False)
    assert [path.name for path in tmp_path.iterdir()] == ["exported"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}}, "rope_type is 'linear'"),
        ({"model_type": "gpt2"}, "gpt2"),
    ],
)
def test_a_model_it_cannot_compute_is_refused(
    tiny_llama: Path, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    config = json.loads((tiny_llama / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(UnsupportedModel, match=message):
        TrainerRank(trainer_config(tmp_path), trainable=False)


def test_dropped_rows_are_scored_too(tiny_llama: Path) -> None:
    trainer = TrainerRank(trainer_config(tiny_llama), trainable=False)
    batch = train_batch(rows=2)
    assert trainer.logprobs(dropped(batch)).equals(trainer.logprobs(batch))
