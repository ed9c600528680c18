"""How far the stages that run now are, by what the processes that work for them say."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from rlcore.progress import progress_file, read_progress

WORKERS = {
    "generate": ("scheduler", "engine-0"),
    "reward": ("graders",),
    "ref_logprob": ("reference-0",),
    "old_logprob": ("trainer-0",),
    "values": ("critic-0",),
    "update": ("critic-0", "trainer-0"),
    "evaluate": ("engine-0", "graders"),
}
"""Whose count is the stage's, for stages that are long enough to ask. Of several ranks the first."""


def counts(run_directory: Path, stages: Collection[str]) -> dict[str, str]:
    """Of the stages whose workers count: `143/256 responses, 3120 tokens`."""
    said = {
        stage: [read_progress(progress_file(run_directory, name)) for name in WORKERS.get(stage, ())]
        for stage in stages
    }
    return {
        stage: ", ".join(progress.counted for progress in workers if progress is not None and progress.counted)
        for stage, workers in said.items()
    }
