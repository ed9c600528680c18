"""Dr. GRPO's advantage."""

from __future__ import annotations

from torch import Tensor

from rlcore.algorithms.advantages.groups import ScoredGroups
from rlcore.algorithms.advantages.registry import estimator


@estimator("dr_grpo", source="Liu et al. (Dr. GRPO), arXiv 2503.20783, section 3.2", tokens="returns")
def dr_grpo_advantages(rewards: Tensor, groups: Tensor) -> Tensor:
    """The reward above the mean of its group: without the division that favours prompts of little variance.

        A_i = R_i − mean_g

    Liu et al., "Understanding R1-Zero-like training", arXiv 2503.20783, section 3.2. Its other half is the
    aggregation seq-mean-token-sum-norm.
    """
    return ScoredGroups(rewards, groups).centred
