"""Returns and advantages of token rewards."""

from __future__ import annotations

import torch
from torch import Tensor


def discounted_returns(rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """R_t = r_t + γ·R_{t+1} over the tokens that train. All (B, T); 0 where masked.

    Sutton and Barto, 2018, "Reinforcement Learning", equation 3.9. Masked tokens (padding, tool output) are
    skipped, not discounted through: a trajectory with a gap gives what the trajectory without the gap gives.
    Rewards at masked positions count for nothing.
    """
    trains = mask.bool()
    decay = torch.ones_like(rewards).masked_fill(trains, gamma)
    return reverse_scan(torch.where(trains, rewards, 0.0), decay) * trains


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation over the tokens that train: advantages and returns, all (B, T), 0 where masked.

        δ_t = r_t + γ·V_{t+1} − V_t
        A_t = δ_t + γλ·A_{t+1}             equation 16, as a recursion
        return_t = A_t + V_t               what the value function is fitted to

    Schulman et al., arXiv 1506.02438. `values[b, t]` is V of the state in which token t is chosen; V after the last
    token is 0. Masked tokens are skipped as in `discounted_returns`: t + 1 is the next token that trains. What
    stands at masked positions influences nothing.
    """
    trains = mask.bool()
    values = torch.where(trains, values, 0.0)
    # At every position, the value at the first token at or after it that trains.
    following = reverse_scan(values, (~trains).to(values.dtype))
    following = torch.nn.functional.pad(following, (0, 1))[:, 1:]
    residuals = torch.where(trains, rewards + gamma * following - values, 0.0)
    decay = torch.ones_like(values).masked_fill(trains, gamma * lam)
    advantages = reverse_scan(residuals, decay) * trains
    return advantages, advantages + values


def reverse_scan(values: Tensor, decay: Tensor) -> Tensor:
    """y_t = values_t + decay_t · y_{t+1}, with y = 0 after the end. All (B, T).

    By doubling (Hillis and Steele, 1986, "Data parallel algorithms"): log2 T steps over whole tensors. After the
    step with span s, y_t holds the terms of the positions t … t + 2s − 1 and `decay` the product of their decays.
    """
    span, length = 1, values.shape[1]
    while span < length:
        # Past the end there is nothing: 0, and no decay of it matters.
        values = values + decay * torch.nn.functional.pad(values[:, span:], (0, span))
        decay = decay * torch.nn.functional.pad(decay[:, span:], (0, span))
        span *= 2
    return values
