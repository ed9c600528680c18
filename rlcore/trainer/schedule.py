"""The learning rate as a function of the number of updates applied: Megatron's OptimizerParamScheduler."""

from __future__ import annotations

from megatron.core.optimizer import MegatronOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler, get_canonical_lr_for_logging

from rlcore.trainer.settings import OptimizerSettings


class Schedule:
    """Puts the configuration's numbers into an optimizer's parameter groups, at any place in the run.

    With n updates applied, a warm-up of W and a length of D iterations, the rate of the next update is

        (n + 1) / (W + 1) · learning_rate                                        n < W
        min_lr + f((n − W) / (D − W)) · (learning_rate − min_lr)            W ≤ n < D
        min_lr                                                                   n ≥ D

    with f(x) = 1 − x (linear), (1 + cos πx) / 2 (cosine; Loshchilov and Hutter, arXiv 1608.03983, eq. 5), or 1
    throughout (constant). No update has a rate of 0 before the end, because each costs an iteration's rollouts.
    Nothing is remembered between calls, so a trainer that was restored goes on exactly.
    """

    def __init__(self, settings: OptimizerSettings, optimizer: MegatronOptimizer, idle: int = 0) -> None:
        """
        Args:
            idle: updates at the start of the run that take no optimizer step; the schedule starts after them.

        Raises:
            ValueError: the warm-up is not shorter than the schedule.
        """
        self._settings, self._optimizer, self._idle = settings, optimizer, idle
        warmup, length = settings.schedule_steps(idle)
        self._fill_groups()
        self._scheduler = OptimizerParamScheduler(
            optimizer,
            init_lr=settings.learning_rate / (warmup + 1),
            max_lr=settings.learning_rate,
            min_lr=settings.min_lr,
            lr_warmup_steps=warmup,
            lr_decay_steps=length,
            lr_decay_style=settings.lr_scheduler_type,
            start_wd=settings.weight_decay,
            end_wd=settings.weight_decay,
            wd_incr_steps=0,
            wd_incr_style="constant",
        )

    def apply(self, updates: int) -> float:
        """Set the parameter groups for the update after `updates` applied ones; its learning rate.

        A checkpoint brings its own groups along: these numbers replace theirs.
        """
        self._fill_groups()
        self._scheduler.num_steps = max(0, updates - self._idle)
        self._scheduler.step(0)
        return float(get_canonical_lr_for_logging(self._optimizer.param_groups))

    def _fill_groups(self) -> None:
        for group in self._optimizer.param_groups:
            group["betas"] = (self._settings.adam_beta1, self._settings.adam_beta2)
            group["max_lr"], group["min_lr"] = self._settings.learning_rate, self._settings.min_lr
