"""What a policy loss reads."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Tensors of one micro-batch: (B, T), `sequence_rewards` (B,).

    Raises:
        ValueError: a tensor has another shape.
    """

    logprobs: Tensor
    """log π of the policy being trained; the one tensor that carries a gradient."""
    old_logprobs: Tensor
    """log π_old: the denominator of the ratio."""
    advantages: Tensor
    mask: Tensor
    """1 (or True) where a token trains."""
    rollout_logprobs: Tensor | None = None
    """log μ, as the engine that generated reported it. One that is not finite is of a token nobody can correct for."""
    sequence_rewards: Tensor | None = None
    entropy: Tensor | None = None
    """Of the distribution at each position, in nats."""
    selected: Tensor | None = None
    """True where `batch_selection` chose the token among those of the whole batch."""

    def __post_init__(self) -> None:
        shape = tuple(self.logprobs.shape)
        for name in ("old_logprobs", "advantages", "mask", "rollout_logprobs", "entropy", "selected"):
            self._check(name, shape)
        self._check("sequence_rewards", shape[:1])

    def _check(self, name: str, expected: tuple[int, ...]) -> None:
        values = getattr(self, name)
        if values is not None and tuple(values.shape) != expected:
            raise ValueError(
                f"LossInputs.{name} has shape {tuple(values.shape)}, with logprobs {tuple(self.logprobs.shape)} "
                f"it has to be {expected}"
            )
