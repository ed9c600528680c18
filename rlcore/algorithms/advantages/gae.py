"""The score where a critic gives the advantages."""

from __future__ import annotations

from torch import Tensor

from rlcore.algorithms.advantages.registry import estimator


@estimator("gae", source="Schulman et al., arXiv 1506.02438, equation 16", tokens="gae")
def gae_scores(rewards: Tensor, groups: Tensor) -> Tensor:
    """The reward itself; a critic's values turn it into token advantages (`rlcore.algorithms.returns.gae`).

        score_i = R_i

    Schulman et al., "High-dimensional continuous control using generalized advantage estimation", arXiv 1506.02438.
    """
    return rewards.nan_to_num(nan=0.0)
