from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rlcore
from rlcore.algorithms import LossInputs, policy_loss
from rlcore.algorithms.losses import LOSSES, batch_selection
from rlcore.algorithms.losses.registry import loss

ZEROS = torch.zeros(2, 3)
INPUTS = LossInputs(ZEROS, ZEROS, ZEROS, ZEROS)


def test_the_losses_are_those_of_the_papers() -> None:
    names = "reinforce ppo gspo gspo_token gmpo cispo topr tis_roll kimi15 sapo opmd clip_cov kl_cov decoupled_ppo"
    assert set(names.split()) <= set(LOSSES)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_says_its_idea_its_source_and_its_options(name: str) -> None:
    entry = LOSSES[name]
    documentation = inspect.getdoc(entry.function)
    assert documentation is not None and documentation.startswith(entry.idea) and entry.idea.endswith(".")
    assert re.search(r"arXiv \d{4}\.\d{5}|\d{4}", entry.source)
    if "Options and metrics: as in gspo" not in documentation:
        for option in entry.options:
            assert re.search(rf"^    [\w, ]*\b{option}\b[\w, ]*:", documentation, re.MULTILINE), option


def test_options_and_defaults_are_read_from_the_function() -> None:
    assert LOSSES.find("cispo").options == {"clip_low": 1.0, "clip_high": 3.0, "unified_mask": False}
    assert LOSSES.find("reinforce").options == {}


def test_unknown_names_and_options_are_refused_with_the_nearest_known() -> None:
    with pytest.raises(ValueError, match=r"no policy loss 'pppo'; did you mean 'ppo'\? there are .*cispo.*tis_roll"):
        policy_loss("pppo", INPUTS)
    with pytest.raises(TypeError, match=r"'ppo' has no option 'clip_hihg'; did you mean 'clip_high'.*clip_low"):
        policy_loss("ppo", INPUTS, clip_hihg=0.3)
    with pytest.raises(TypeError, match="'reinforce' has no option 'tau'; there are none"):
        policy_loss("reinforce", INPUTS, tau=0.3)
    with pytest.raises(TypeError, match="'kl_cov' has no option 'fractoin'; did you mean 'fraction'"):
        batch_selection("kl_cov", ZEROS, ZEROS, ZEROS, fractoin=0.1)


def test_a_loss_refuses_inputs_without_what_it_needs() -> None:
    with pytest.raises(ValueError, match=r"'decoupled_ppo' needs LossInputs.rollout_logprobs"):
        policy_loss("decoupled_ppo", INPUTS)


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match=r"there is a policy loss 'ppo' already, in rlcore\.algorithms\.losses\.ppo"):
        loss("ppo", source="nowhere")(LOSSES.find("reinforce").function)


@pytest.mark.parametrize("name", ["old_logprobs", "advantages", "mask", "rollout_logprobs", "entropy", "selected"])
def test_inputs_of_another_shape_are_refused(name: str) -> None:
    tensors = {"logprobs": ZEROS, "old_logprobs": ZEROS, "advantages": ZEROS, "mask": ZEROS}
    with pytest.raises(ValueError, match=rf"LossInputs.{name} has shape \(2, 4\), .* it has to be \(2, 3\)"):
        LossInputs(**tensors | {name: torch.zeros(2, 4)})


def test_rewards_are_one_a_sequence() -> None:
    with pytest.raises(ValueError, match=r"sequence_rewards has shape \(2, 3\), .* it has to be \(2,\)"):
        LossInputs(ZEROS, ZEROS, ZEROS, ZEROS, sequence_rewards=ZEROS)


PROGRAM = """
import math
import torch
from rlcore.algorithms import LossInputs, policy_loss
x = torch.full((1, 1), -3.0)
inputs = LossInputs(x, x - math.log(4.0), torch.ones(1, 1), torch.ones(1, 1))
print(policy_loss("power", inputs, exponent=0.5)[0].item())
"""


def test_adding_a_loss_is_adding_one_file_of_ten_lines_as_documented(tmp_path: Path) -> None:
    package = Path(rlcore.__path__[0])
    shutil.copytree(package / "algorithms", tmp_path / "rlcore" / "algorithms")
    documentation = (package.parent / "docs" / "algorithms.md").read_text()
    [example] = re.findall(r"```python\n# (rlcore/algorithms/losses/\w+\.py)\n(.*?)```", documentation, re.DOTALL)
    (tmp_path / example[0]).write_text(example[1])
    assert sum(bool(line) for line in example[1].splitlines()) == 10
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    # The ratio is 4, its root 2; −2·1·(−3).
    assert float(finished.stdout) == pytest.approx(6.0)
