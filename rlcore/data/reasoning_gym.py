"""Problems by reasoning-gym, as the rows of datasets."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import tempfile
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rlcore.config_errors import nearest
from rlcore.data.datasets import DatasetError
from rlcore.data.settings import ReasoningGymConfig
from rlcore.pretrained import cache_directory

SURPLUS = 10
"""Problems that are made for each that is wanted: many are the same in other words."""
PARTS = ("train", "held_out")


def made_files(source: ReasoningGymConfig) -> tuple[Path, Path]:
    """Two JSONL files: the problems to train on, and those held out. Made once, and the same every time.

    Raises:
        DatasetError: there is no such task, its verifier would execute the answer, its curriculum or its parameters
            are not as given, or it has too few different problems.
    """
    identity = f"{version('reasoning-gym')} {source.model_dump_json()}"
    stem = f"{source.task}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    train, held_out = (cache_directory() / "problems" / f"{stem}.{part}.jsonl" for part in PARTS)
    if not train.is_file() or not held_out.is_file():
        # In a process that ends, for reasoning-gym and what it imports stay in memory.
        with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as process:
            process.submit(_make, source, train, held_out).result()
    return train, held_out


def problems(task: str, seed: int, count: int, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
    """At most so many of a task's entries, no two of them the same in other words, as 4 + 6 and 6 + 4 are."""
    import reasoning_gym

    entries = reasoning_gym.create_dataset(task, **{**parameters, "seed": seed, "size": count})
    return list({tuple(sorted(re.findall(r"\w+", entry["question"]))): entry for entry in entries}.values())


def row(entry: dict[str, Any], domain: str, instruction: str) -> dict[str, Any]:
    """Of a dataset; the ground truth is the whole entry, which the task's verifier scores with."""
    task, question = entry["metadata"]["source_dataset"], entry["question"].strip()
    return {"domain": domain, "tag": task, "prompt": f"{question} {instruction}".strip(), "ground_truth": entry}


def _make(source: ReasoningGymConfig, train: Path, held_out: Path) -> None:
    wanted = source.train + source.held_out
    entries = problems(source.task, source.seed, SURPLUS * wanted, task_parameters(source))
    if len(entries) < wanted:
        raise DatasetError(
            f"data.reasoning_gym: {source.task} has only {len(entries)} different problems as it is set up, but "
            f"{source.train} to train on and {source.held_out} held out are wanted: ask for fewer, or widen it"
        )
    rows = [row(entry, source.domain, source.instruction) for entry in entries[:wanted]]
    train.parent.mkdir(parents=True, exist_ok=True)
    for path, part in ((held_out, rows[: source.held_out]), (train, rows[source.held_out :])):
        # Processes that do the same at the same time write the same.
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as staging:
            staging.writelines(json.dumps(each, ensure_ascii=False) + "\n" for each in part)
        Path(staging.name).replace(path)


def task_parameters(source: ReasoningGymConfig) -> dict[str, Any]:
    """Of the task's own configuration: what its curriculum says, and over it what is given.

    Raises:
        DatasetError: there is no such task, or it is not to be used, or it cannot be set up so.
    """
    from reasoning_gym.factory import DATASETS

    from rlcore.rewards.reasoning_gym import EXECUTES_THE_ANSWER

    task = source.task
    if task not in DATASETS:
        raise DatasetError(f"data.reasoning_gym: no task {task!r}; {nearest(task, list(DATASETS))}")
    if task in EXECUTES_THE_ANSWER:
        raise DatasetError(f"data.reasoning_gym: the verifier of {task} executes the answer as code; use another task")
    parameters = {**_by_curriculum(task, source.curriculum), **source.parameters}
    config = DATASETS[task][1]
    try:
        config(**parameters).validate()
    except (AssertionError, TypeError, ValueError) as error:
        known = ", ".join(field.name for field in dataclasses.fields(config) if field.name not in ("seed", "size"))
        raise DatasetError(f"data.reasoning_gym: {task}: {error}; its parameters are {known}") from None
    return parameters


def _by_curriculum(task: str, levels: int | dict[str, int]) -> dict[str, Any]:
    from reasoning_gym.factory import CURRICULA, create_curriculum

    if levels == {}:
        return {}
    if task not in CURRICULA:
        raise DatasetError(f"data.reasoning_gym: {task} has no curriculum; set parameters instead")
    curriculum = create_curriculum(task)
    highest = {name: len(attribute.levels) - 1 for name, attribute in curriculum.attributes.items()}
    wanted = levels if isinstance(levels, dict) else {name: min(levels, most) for name, most in highest.items()}
    for name, level in wanted.items():
        if level > highest.get(name, -1):
            there = ", ".join(f"{each} to {most}" for each, most in highest.items())
            raise DatasetError(f"data.reasoning_gym: the curriculum of {task} has no {name} {level}; it has {there}")
        curriculum.set_attr_level(name, level)
    return dataclasses.asdict(curriculum.generate_configuration())
