"""REINFORCE++'s scores, with and without the baseline of a group."""

from __future__ import annotations

from torch import Tensor

from rlcore.algorithms.advantages.groups import ScoredGroups
from rlcore.algorithms.advantages.registry import estimator

SOURCE = "Hu et al. (REINFORCE++), arXiv 2501.03262"


@estimator("reinforce_pp", source=SOURCE, tokens="whitened_returns")
def reinforce_pp_advantages(rewards: Tensor, groups: Tensor) -> Tensor:
    """The reward itself; the returns of the tokens are normalised over the whole batch, not within a group.

        score_i = R_i;  token advantages: whiten(return of score − β·k1)

    Hu et al., arXiv 2501.03262. Needs no group: one response per prompt is enough.
    """
    return rewards.nan_to_num(nan=0.0)


@estimator("reinforce_pp_baseline", source=SOURCE, tokens="whitened_returns")
def reinforce_pp_baseline_advantages(rewards: Tensor, groups: Tensor) -> Tensor:
    """The reward above the mean of its group; the returns of the tokens are normalised over the whole batch.

        score_i = R_i − mean_g;  token advantages: whiten(return of score − β·k1)

    Hu et al., arXiv 2501.03262, the variant with baseline.
    """
    return ScoredGroups(rewards, groups).centred
