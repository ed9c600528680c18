"""What a policy loss reads."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Per-token tensors of one micro-batch, all (B, T).

    Raises:
        ValueError: a tensor has another shape than `logprobs`.
    """

    logprobs: Tensor
    """log π of the policy being trained; the one tensor that carries a gradient."""
    old_logprobs: Tensor
    """log π_old: the denominator of the ratio."""
    advantages: Tensor
    mask: Tensor
    """1 (or True) where a token trains."""

    def __post_init__(self) -> None:
        for name in ("old_logprobs", "advantages", "mask"):
            shape = tuple(getattr(self, name).shape)
            if shape != tuple(self.logprobs.shape):
                raise ValueError(f"LossInputs.{name} has shape {shape}, logprobs has {tuple(self.logprobs.shape)}")
