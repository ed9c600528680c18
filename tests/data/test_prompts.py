"""Prompts are tokenized once on a machine, and what was dropped is said every time."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from rlcore.compose import compose
from rlcore.config import Config
from rlcore.data import prompts
from rlcore.pretrained import smollm2_directory


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """With an empty cache."""
    model = smollm2_directory()
    monkeypatch.setenv("RLVR_CACHE", str(tmp_path))
    return compose("arithmetic", [f"model.path={model}", "data.prompt_length=52"])


def test_another_process_reads_the_tokens_that_the_first_has_kept(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    prompts._tokenized.cache_clear()
    first = prompts.held_out_prompts(config)
    said = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 1 and "are longer than prompt_length 52 and dropped: " in said[0]

    prompts._tokenized.cache_clear()
    monkeypatch.setattr(prompts, "ProcessPoolExecutor", None)
    assert prompts.held_out_prompts(config).equals(first)
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == said * 2


def test_other_prompts_lengths_and_tokenizers_have_tokens_of_their_own(config: Config, tmp_path: Path) -> None:
    frame = prompts.load_prompts(config.data.held_out, {"arithmetic"})
    model = tmp_path / "model"
    model.mkdir()
    (model / "tokenizer.json").write_text("{}")
    (model / "model.safetensors").write_text("weights")
    before = prompts._identity(frame, model, 52)
    (model / "model.safetensors").write_text("others")
    assert prompts._identity(frame, model, 52) == before
    assert prompts._identity(frame.head(3), model, 52) != before
    assert prompts._identity(frame, model, 53) != before
    (model / "tokenizer.json").write_text('{"other": 1}')
    assert prompts._identity(frame, model, 52) != before
