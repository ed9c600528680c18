"""What `rlvr algorithms` prints."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from rlcore.algorithms.advantages import ESTIMATORS
from rlcore.algorithms.losses import LOSSES
from rlcore.catalogue import PRESETS, comment, print_catalogue, settings


def test_everything_is_listed_with_its_options_and_source() -> None:
    console = Console(file=io.StringIO(), width=200)
    print_catalogue(console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for name in (*LOSSES, *ESTIMATORS, *(path.stem for path in PRESETS.glob("*.yaml"))):
        assert f" {name} " in text
    assert "weight_high=2.0" in text and "arXiv 2505.24298" in text and "token-mean" in text


@pytest.mark.parametrize("entry", [*LOSSES.values(), *ESTIMATORS.values()], ids=lambda entry: entry.name)
def test_every_algorithm_says_its_idea_in_one_sentence(entry: object) -> None:
    idea = getattr(entry, "idea")  # noqa: B009
    assert idea.endswith(".") and len(idea) > 20


def test_a_preset_shows_what_it_builds_on_and_what_it_changes() -> None:
    dapo = settings(PRESETS / "dapo.yaml")
    assert (dapo["adv_estimator"], dapo["pg_clip_low"], dapo["pg_clip_high"]) == ("grpo", 0.2, 0.28)
    assert comment(PRESETS / "dapo.yaml").startswith("DAPO (arXiv:2503.14476)")
