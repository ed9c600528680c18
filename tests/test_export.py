"""`rlvr export`: what it writes, and what it refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rlcore.compose import compose, dump, load
from rlcore.export import ExportRefused, export_model
from rlcore.store import RunStore
from rlcore.trainer.checkpoint import CheckpointDamaged, publish
from tests.flows.test_cli import rlvr

METRICS = {
    0: '"eval/accuracy": 0.4, "eval/low": 0.3, "eval/high": 0.5',
    5: '"eval/accuracy": 0.6, "eval/low": 0.5, "eval/high": 0.7',
    6: '"reward/mean": 0.5',
    10: '"eval/accuracy": 0.8, "eval/low": 0.7, "eval/high": 0.9, '
    '"eval/arithmetic/accuracy": 0.8, "eval/arithmetic/low": 0.7, "eval/arithmetic/high": 0.9',
}


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """A run with checkpoints after iterations 6 and 10, which are only files here."""
    config = compose("arithmetic", [f"runs_dir={tmp_path}", "run=small", "algorithm=cispo"])
    store = RunStore(config.run_url)
    store.write_bytes("config.yaml", dump(config).encode())
    for iteration, metrics in METRICS.items():
        store.append_line("metrics.jsonl", f'{{"iteration": {iteration}, {metrics}}}')
    for version in (6, 10):
        staging = store.directory / "checkpoints" / ".saving"
        for name, content in {
            "huggingface/model.safetensors": f"weights {version}",
            "huggingface/chat_template.jinja": "{{ messages }}",
            "huggingface/README.md": "the base model's own card",
            "megatron/trainer/state": "state",
        }.items():
            (staging / name).parent.mkdir(parents=True, exist_ok=True)
            (staging / name).write_text(content)
        publish(staging, store.directory / "checkpoints" / f"{version:06d}")
    return store


def test_the_newest_model_or_that_of_an_iteration_is_written_with_a_card(store: RunStore, tmp_path: Path) -> None:
    for iteration, expected in ((None, 10), (6, 6)):
        directory = tmp_path / "exports" / f"{expected}"
        assert export_model(store, iteration, directory) == expected
        assert (directory / "model.safetensors").read_text() == f"weights {expected}"
        assert {path.name for path in directory.iterdir()} == {
            "README.md",
            "chat_template.jinja",
            "model.safetensors",
        }
        assert f"# small, iteration {expected}\n" in (directory / "README.md").read_text()
    assert [path.name for path in (tmp_path / "exports").iterdir() if path.name.startswith(".")] == []


def test_the_card_says_what_the_model_was_trained_on_and_what_it_learned(store: RunStore, tmp_path: Path) -> None:
    export_model(store, None, tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    config = load(store.read_bytes("config.yaml").decode())
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert f"trained for 10 of {config.iterations} iterations" in card
    for fact in (config.model.path, *config.data.train, *config.data.held_out):
        assert f"`{fact}`" in card
    assert "| domains | arithmetic 100% (graded by math) |" in card
    assert "| algorithm | grpo advantages, cispo loss, token-mean |" in card
    assert "10 × 128 responses of at most 32 tokens, 8 to a prompt" in card
    assert "| prompts | before training | after iteration 10 |" in card
    assert "| all | 0.400 (0.300–0.500) | 0.800 (0.700–0.900) |" in card
    assert "| arithmetic | — | 0.800 (0.700–0.900) |" in card
    [written] = re.findall(r"```yaml\n(.*)```", card, flags=re.DOTALL)
    assert load(written) == config


def test_where_the_iteration_was_not_evaluated_the_card_has_the_last_evaluation_before_it(
    store: RunStore, tmp_path: Path
) -> None:
    export_model(store, 6, tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    assert "| prompts | before training | after iteration 5 |" in card
    assert "Iteration 6 itself was not evaluated." in card
    (store.directory / "metrics.jsonl").unlink()
    export_model(store, 6, tmp_path / "unmeasured")
    assert "Not measured." in (tmp_path / "unmeasured" / "README.md").read_text()


def test_a_missing_iteration_is_refused_with_those_there_are(store: RunStore, tmp_path: Path) -> None:
    with pytest.raises(ExportRefused, match=r"has no checkpoint of iteration 7; there are: 6, 10"):
        export_model(store, 7, tmp_path / "model")
    with pytest.raises(ExportRefused, match="has no checkpoint yet"):
        export_model(RunStore(str(tmp_path / "empty")), None, tmp_path / "model")


def test_a_directory_with_something_in_it_is_left_as_it_is(store: RunStore, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    with pytest.raises(ExportRefused, match="mine is there and not empty"):
        export_model(store, None, tmp_path / "mine")
    with pytest.raises(ExportRefused, match=r"thesis\.txt is there and not empty"):
        export_model(store, None, tmp_path / "mine" / "thesis.txt")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_a_damaged_model_is_refused_and_leaves_nothing(store: RunStore, tmp_path: Path) -> None:
    file = store.directory / "checkpoints" / "000010" / "huggingface" / "model.safetensors"
    file.write_text("weighty 10")
    with pytest.raises(CheckpointDamaged, match=re.escape(str(file))):
        export_model(store, None, tmp_path / "exports" / "model")
    assert not (tmp_path / "exports").exists()


def test_the_command_takes_the_iteration_or_leaves_it_out(store: RunStore, tmp_path: Path) -> None:
    assert rlvr("export", store.url, str(tmp_path / "a")) == (0, f"{tmp_path / 'a'}: the model after iteration 10\n")
    assert rlvr("export", store.url, "6", str(tmp_path / "b")) == (
        0,
        f"{tmp_path / 'b'}: the model after iteration 6\n",
    )
    status, output = rlvr("export", store.url, "7", str(tmp_path / "c"))
    assert status == 1 and "there are: 6, 10" in output and "Traceback" not in output
    status, output = rlvr("export", store.url, "6", "10", str(tmp_path / "c"))
    assert status == 2 and "one ITERATION, not 2" in output
