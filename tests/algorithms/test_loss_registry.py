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
from rlcore.algorithms.losses import LOSSES, batch_selection, find_loss
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
    assert find_loss("cispo").options == {"clip_low": 1.0, "clip_high": 3.0, "unified_mask": False}
    assert find_loss("reinforce").options == {}


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
        loss("ppo", source="nowhere")(find_loss("reinforce").function)


@pytest.mark.parametrize("name", ["old_logprobs", "advantages", "mask", "rollout_logprobs", "entropy", "selected"])
def test_inputs_of_another_shape_are_refused(name: str) -> None:
    tensors = {"logprobs": ZEROS, "old_logprobs": ZEROS, "advantages": ZEROS, "mask": ZEROS}
    with pytest.raises(ValueError, match=rf"LossInputs.{name} has shape \(2, 4\), .* it has to be \(2, 3\)"):
        LossInputs(**tensors | {name: torch.zeros(2, 4)})


def test_rewards_are_one_a_sequence() -> None:
    with pytest.raises(ValueError, match=r"sequence_rewards has shape \(2, 3\), .* it has to be \(2,\)"):
        LossInputs(ZEROS, ZEROS, ZEROS, ZEROS, sequence_rewards=ZEROS)


NEWCOMER = '''
"""A loss of somebody's own."""

from rlcore.algorithms.losses.registry import loss
from rlcore.algorithms.losses.surrogate import weighted_policy_gradient


@loss("newcomer", source="nobody, 2099")
def newcomer_loss(inputs, *, factor=2.0):
    """Twice the policy gradient."""
    return weighted_policy_gradient(inputs, factor), {}
'''

PROGRAM = """
import torch
from rlcore.algorithms import LossInputs, policy_loss
x = torch.full((1, 1), -3.0)
print(policy_loss("newcomer", LossInputs(x, x, torch.ones(1, 1), torch.ones(1, 1)), factor=5.0)[0].item())
"""


def test_adding_a_loss_is_adding_one_file(tmp_path: Path) -> None:
    package = Path(rlcore.__path__[0])
    shutil.copytree(package / "algorithms", tmp_path / "rlcore" / "algorithms")
    (tmp_path / "rlcore" / "algorithms" / "losses" / "newcomer.py").write_text(NEWCOMER)
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    assert float(finished.stdout) == 15.0
