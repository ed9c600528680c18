"""Which checkpoints of a run stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcore.cluster.checkpoints import delete_superseded, superseded
from rlcore.compose import compose
from rlcore.config_errors import ConfigError
from rlcore.store import RunStore
from rlcore.trainer.checkpoint import publish, published


@pytest.mark.parametrize(
    ("versions", "keep", "scores", "gone"),
    [
        ([10, 20, 30, 40], 2, {}, [10, 20]),
        ([10, 20, 30, 40], 2, {10: 0.9, 20: 0.5, 30: 0.6}, [20]),
        ([10, 20, 30, 40], 2, {10: 0.5, 20: 0.6, 30: 0.9}, [10, 20]),
        ([10, 20, 30], 1, {10: 0.7, 20: 0.7}, [10]),
        ([10, 20], 1, {0: 0.9, 5: 0.9, 10: 0.8}, []),
        ([10, 20], 3, {}, []),
        ([], 1, {0: 0.4}, []),
    ],
    ids=["unknown", "an old one is best", "a new one is best", "equal", "better ones were not saved", "few", "none"],
)
def test_the_newest_and_the_best_stay(
    versions: list[int], keep: int, scores: dict[int, float], gone: list[int]
) -> None:
    assert superseded(versions, keep, scores) == gone


def saved(store: RunStore, version: int) -> None:
    staging = store.directory / "checkpoints" / ".saving"
    staging.mkdir(parents=True)
    (staging / "weights").write_bytes(bytes(version))
    publish(staging, store.directory / "checkpoints" / f"{version:06d}")


def test_over_a_run_the_best_is_never_deleted_although_an_evaluation_is_known_after_the_save(tmp_path: Path) -> None:
    """As the stages of an iteration run: the checkpoint is saved, and then the metrics are written."""
    store, accuracies = RunStore(str(tmp_path)), {1: 0.5, 2: 0.8, 3: 0.6, 4: 0.7, 5: 0.9, 6: 0.4, 7: 0.9}
    kept = []
    for version, accuracy in accuracies.items():
        saved(store, version)
        delete_superseded(store, keep=1, best_by="eval/accuracy")
        store.append_line("metrics.jsonl", f'{{"iteration": {version}, "eval/accuracy": {accuracy}}}')
        kept.append([int(path.name) for path in published(store.directory / "checkpoints")])
    assert kept == [[1], [1, 2], [2, 3], [2, 4], [2, 5], [5, 6], [5, 7]]


def test_without_a_metric_to_judge_by_only_the_newest_stay(tmp_path: Path) -> None:
    store = RunStore(str(tmp_path))
    for version in (1, 2, 3):
        saved(store, version)
        store.append_line("metrics.jsonl", f'{{"iteration": {version}, "eval/accuracy": {1 / version}}}')
    delete_superseded(store, keep=2, best_by=None)
    assert [path.name for path in published(store.directory / "checkpoints")] == ["000002", "000003"]


def test_a_metric_that_no_evaluation_measures_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'eval/acuracy'; there are: eval/accuracy, eval/arithmetic/accuracy"):
        compose("arithmetic", ["save_best=eval/acuracy"])
    assert compose("arithmetic", ["save_best=eval/arithmetic/accuracy"]).save_best == "eval/arithmetic/accuracy"
    assert compose("arithmetic", ["save_best=null"]).save_best is None
