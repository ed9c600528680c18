"""`rlvr grade` and `rlvr rewards`, as a user types them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlcore.data.datasets import DatasetError
from rlcore.rewards.offline import read_responses
from rlcore.rewards.options import OPTIONS


def rlvr(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from flows.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def write(path: Path, *lines: dict[str, Any] | str) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_responses_are_graded_as_in_a_training(tmp_path: Path) -> None:
    rules = {"rules": [{"kind": "lowercase"}]}
    file = write(
        tmp_path / "responses.jsonl",
        {"id": "right", "response": "It is 12.", "ground_truth": "12", "model": "mine"},
        {"response": "It is 13.", "ground_truth": "12"},
        "",
        {"response": "It is 12.", "ground_truth": "no number at all ("},
    )
    done = rlvr("grade", "arithmetic", "--file", str(file), "--config", "mixed", "hardware.reward_processes=1")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["sample_id"], row["reward"]) for row in rows[:2]] == [("right", 1.0), ("2", 0.0)]
    assert (rows[2]["sample_id"], rows[2]["reward_status"]) == ("4", "grader_error")
    assert done.stderr.strip() == "3 responses: 1 grader_error, 2 scored; mean reward 0.5"
    file = write(tmp_path / "more.jsonl", {"response": "all small", "ground_truth": rules})
    done = rlvr("grade", "format", "--file", str(file))
    assert [json.loads(line)["reward"] for line in done.stdout.splitlines()] == [1.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mathematics",), "no grader 'mathematics'; did you mean multiple_choice?"),
        (("arithmetik", "--config", "mixed"), "mixed has no domain 'arithmetik' in rewards; did you mean arithmetic?"),
    ],
)
def test_an_unknown_domain_is_named(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    file = write(tmp_path / "responses.jsonl", {"response": "", "ground_truth": ""})
    done = rlvr("grade", *arguments, "--file", str(file))
    assert done.returncode == 1
    assert message.split(";")[0] in done.stdout


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"responses\.jsonl:2: Invalid JSON"),
        ({"ground_truth": "12"}, r"responses\.jsonl:2: response: Field required; expected one object per line"),
        ({"response": 12}, r"responses\.jsonl:2: response: Input should be a valid string"),
        ({"id": "1", "response": ""}, r"responses\.jsonl:2: the id '1' was there before"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: dict[str, Any] | str, message: str) -> None:
    file = write(tmp_path / "responses.jsonl", {"response": ""}, line)
    with pytest.raises(DatasetError, match=message):
        read_responses(file)


def test_every_grader_is_listed_with_its_options() -> None:
    listed = rlvr("rewards").stdout
    for grader, model in OPTIONS.items():
        assert grader in listed
        assert all(name in listed for name in model.model_fields)
