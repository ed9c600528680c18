"""The coefficient of a KL penalty from update to update."""

from __future__ import annotations

import math
from dataclasses import dataclass

MAX_ERROR = 0.2


@dataclass
class FixedKL:
    """A coefficient that stays what it is."""

    coef: float

    def update(self, kl: float, n: int) -> None:
        """Changes nothing."""

    def state_dict(self) -> dict[str, float]:
        """Empty: the coefficient is the configuration's."""
        return {}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restores nothing."""


@dataclass
class AdaptiveKL:
    """A coefficient that is raised while the KL is above its target, and lowered while it is below.

        β ← β·(1 + clip(KL/target − 1, ±0.2)·n/horizon)

    Ziegler et al., "Fine-tuning language models from human preferences", arXiv 1909.08593, section 2.2, with
    n/horizon as their K_β.

    Raises:
        ValueError: `target` or `horizon` is not positive, or `coef` is negative.
    """

    coef: float
    """β."""
    target: float
    """Of the KL, in nats, per token or per response as `update` is given it."""
    horizon: int
    """In responses: so many of them, all at the largest error, change β by a fifth."""

    def __post_init__(self) -> None:
        if self.coef < 0 or self.target <= 0 or self.horizon <= 0:
            raise ValueError(f"{self}: coef must not be negative, target and horizon must be positive")

    def update(self, kl: float, n: int) -> None:
        """Once per update.

        Args:
            kl: mean of the whole batch.
            n: responses in it.

        Raises:
            ValueError: `kl` is not finite, or `n` is more than the horizon.
        """
        if not math.isfinite(kl):
            raise ValueError(f"the KL of the batch is {kl}: the coefficient cannot follow it")
        if n > self.horizon:
            raise ValueError(f"the horizon of the KL coefficient is {self.horizon} responses, less than a batch of {n}")
        error = min(max(kl / self.target - 1, -MAX_ERROR), MAX_ERROR)
        self.coef *= 1 + error * n / self.horizon

    def state_dict(self) -> dict[str, float]:
        """What a checkpoint holds: coef."""
        return {"coef": self.coef}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Goes on with the coefficient of a checkpoint."""
        self.coef = state["coef"]
