"""Torch's AdamW under Megatron's distributed optimizer, which half knows that it keeps a `step` for each parameter.

Without this it cannot be saved before its first step, its `step` is taken for a tensor of the parameter's shape, and
after loading all parameters share one `step`, so that every parameter advances it: bias correction would be wrong.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.optimizer import Adam
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

_installed = False


def install() -> None:
    """Make Megatron's distributed optimizer keep, save and load all of torch's AdamW.

    Does nothing where Transformer Engine or Apex brings an Adam of its own, or the second time.
    """
    global _installed
    if _installed or Adam is not torch.optim.AdamW:
        return
    state_dict = DistributedOptimizer.state_dict
    load_state_dict = DistributedOptimizer.load_state_dict
    get_states = DistributedOptimizer._get_main_param_and_optimizer_states

    def state_dict_with_state(self: Any) -> dict[str, Any]:
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                state = self.optimizer.state[parameter]
                if not state:
                    state["step"] = torch.zeros((), dtype=torch.float32)
                    state["exp_avg"] = torch.zeros_like(parameter)
                    state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state_dict(self)

    def load_with_own_steps(self: Any, state: dict[str, Any]) -> None:
        load_state_dict(self, state)
        for parameter_state in self.optimizer.state.values():
            parameter_state["step"] = parameter_state["step"].clone()

    def get_states_without_step(self: Any, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        states = get_states(self, parameter)
        return {key: value for key, value in states.items() if key != "step"}

    @torch.no_grad()
    def set_states(self: Any, parameter: torch.Tensor, states: dict[str, torch.Tensor]) -> None:
        for key, value in get_states_without_step(self, parameter).items():
            value.copy_(states[key])

    DistributedOptimizer.state_dict = state_dict_with_state
    DistributedOptimizer.load_state_dict = load_with_own_steps
    DistributedOptimizer._get_main_param_and_optimizer_states = get_states_without_step
    DistributedOptimizer._set_main_param_and_optimizer_states = set_states
    _installed = True
