"""Checkpoint directories: whole or not there, and unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcore.trainer import checkpoint
from rlcore.trainer.checkpoint import (
    MANIFEST,
    CheckpointDamaged,
    delete_directory,
    newest_good,
    publish,
    published,
    verify,
)


def staged(directory: Path, content: bytes = b"weights") -> Path:
    staging = directory / ".staging"
    (staging / "megatron").mkdir(parents=True)
    (staging / "megatron" / "weights.distcp").write_bytes(content)
    (staging / "state.json").write_text("{}")
    return staging


def flip_a_byte(checkpoint: Path) -> None:
    file = checkpoint / "megatron" / "weights.distcp"
    content = bytearray(file.read_bytes())
    content[3] ^= 1
    file.write_bytes(content)


def test_a_published_checkpoint_verifies(tmp_path: Path) -> None:
    publish(staged(tmp_path), tmp_path / "000001")
    verify(tmp_path / "000001")
    assert not (tmp_path / ".staging").exists()


def test_a_flipped_byte_is_refused_with_file_and_digests(tmp_path: Path) -> None:
    publish(staged(tmp_path), tmp_path / "000001")
    flip_a_byte(tmp_path / "000001")
    with pytest.raises(CheckpointDamaged, match=r"weights\.distcp has sha256 [0-9a-f]{64}, MANIFEST says [0-9a-f]{64}"):
        verify(tmp_path / "000001")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    publish(staged(tmp_path), tmp_path / "000001")
    (tmp_path / "000001" / "state.json").unlink()
    with pytest.raises(CheckpointDamaged, match=r"state\.json is missing"):
        verify(tmp_path / "000001")


@pytest.mark.parametrize("manifest", [b"", b'{"state.json": ', b"\xff"])
def test_a_manifest_that_cannot_be_read_is_damage(tmp_path: Path, manifest: bytes) -> None:
    publish(staged(tmp_path), tmp_path / "000001")
    (tmp_path / "000001" / MANIFEST).write_bytes(manifest)
    with pytest.raises(CheckpointDamaged, match=f"{MANIFEST} is not JSON"):
        verify(tmp_path / "000001")


def test_a_deletion_that_is_interrupted_leaves_no_half_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(staged(tmp_path), tmp_path / "000001")

    def interrupted(directory: Path, **kwargs: bool) -> None:
        if directory.exists():
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(checkpoint.shutil, "rmtree", interrupted)
        delete_directory(tmp_path / "000001")
    assert published(tmp_path) == []


def test_a_directory_without_manifest_is_no_checkpoint(tmp_path: Path) -> None:
    publish(staged(tmp_path), tmp_path / "000001")
    (tmp_path / "000002").mkdir()
    staged(tmp_path)
    assert published(tmp_path) == [tmp_path / "000001"]
    with pytest.raises(CheckpointDamaged, match=f"has no {MANIFEST}"):
        verify(tmp_path / "000002")


def test_published_checkpoints_are_in_order(tmp_path: Path) -> None:
    assert published(tmp_path / "not-there") == []
    for name in ("000010", "000002", "000100"):
        publish(staged(tmp_path), tmp_path / name)
    assert [path.name for path in published(tmp_path)] == ["000002", "000010", "000100"]


def test_publishing_again_replaces(tmp_path: Path) -> None:
    for content in (b"first", b"second"):
        publish(staged(tmp_path, content), tmp_path / "000001")
    verify(tmp_path / "000001")
    assert (tmp_path / "000001" / "megatron" / "weights.distcp").read_bytes() == b"second"
    assert [path.name for path in tmp_path.iterdir()] == ["000001"]


def test_a_folder_of_a_checkpoint_is_good_whatever_became_of_the_others(tmp_path: Path) -> None:
    staging = staged(tmp_path)
    (staging / "huggingface").mkdir()
    (staging / "huggingface" / "config.json").write_text("{}")
    publish(staging, tmp_path / "000001")
    flip_a_byte(tmp_path / "000001")
    verify(tmp_path / "000001", within="huggingface")
    (tmp_path / "000001" / "huggingface" / "config.json").write_text("{ }")
    with pytest.raises(CheckpointDamaged, match=r"huggingface/config\.json has sha256"):
        verify(tmp_path / "000001", within="huggingface")


def test_the_newest_good_checkpoint_passes_over_damaged_ones_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert newest_good(published(tmp_path)) is None
    for name in ("000001", "000002", "000003"):
        publish(staged(tmp_path), tmp_path / name)
    assert newest_good(published(tmp_path)) == tmp_path / "000003"
    assert not caplog.records
    flip_a_byte(tmp_path / "000003")
    (tmp_path / "000002" / "state.json").unlink()
    assert newest_good(published(tmp_path)) == tmp_path / "000001"
    first, second = caplog.messages
    assert first.startswith("checkpoint 000003 is refused: ") and "weights.distcp" in first
    assert second.startswith("checkpoint 000002 is refused") and "state.json is missing" in second


def test_where_all_checkpoints_are_damaged_the_error_names_a_file_of_each(tmp_path: Path) -> None:
    for name in ("000001", "000002"):
        publish(staged(tmp_path), tmp_path / name)
        flip_a_byte(tmp_path / name)
    with pytest.raises(CheckpointDamaged, match=r"no checkpoint is good: .*000002/megatron.*; .*000001/megatron"):
        newest_good(published(tmp_path))
