"""AdamW on the host: moments lie and are updated in the CPU's memory.

This is ZeRO-Offload (Ren et al. 2021, arXiv:2101.06840). Parameters and gradients stay on the device. A step copies the
gradients to the host, which has its own copy of the parameters. It copies each updated parameter back while it updates
the next. So 4 bytes per number travel each way, and the device keeps 8 of 16 bytes. On a CPU all of it lies in host
memory: there it is torch's AdamW and saves nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from traincope.engine.optimizer.adamw_state import MOMENTS, defaults, like, update
from traincope.engine.ranks.local import local_part


class HostAdamW(torch.optim.Optimizer):
    """torch.optim.AdamW to the bit, as the CPU computes it. `state` has the same entries, in host memory.

    The host copies the parameters when it is created and when a state is loaded. Load parameters before the state.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], *, lr: float, betas: tuple[float, float]) -> None:
        super().__init__(groups, defaults(lr=lr, betas=betas))
        self.copies: dict[nn.Parameter, _Pair] = {}
        for parameter in (each for group in self.param_groups for each in group["params"]):
            if parameter.device.type != "cpu":
                self.copies[parameter] = _Pair.like(local_part(parameter))
            moments = {name: like(parameter, _zeros(local_part(parameter))) for name in MOMENTS}
            self.state[parameter] = {"step": torch.zeros(())} | moments
        self.register_load_state_dict_post_hook(_to_host)

    def copy_parameters(self) -> None:
        """Copy the parameters to the host again, after something else than a step has changed them."""
        for parameter, pair in self.copies.items():
            pair.parameter.copy_(local_part(parameter).detach())

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update each parameter that has a gradient. Gradients exist already, so `closure` must be None."""
        assert closure is None
        settings = {
            parameter: group
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        }
        pairs = {parameter: self._fetch(parameter) for parameter in settings}
        if self.copies:
            torch.cuda.current_stream().synchronize()
        for parameter, pair in pairs.items():
            state = self.state[parameter]
            moments = local_part(state["exp_avg"]), local_part(state["exp_avg_sq"])
            update(pair.parameter, pair.gradient, moments, step=state["step"], settings=settings[parameter])
            if parameter in self.copies:
                local_part(parameter).copy_(pair.parameter, non_blocking=True)

    def _fetch(self, parameter: nn.Parameter) -> "_Pair":
        """Start to copy a gradient to the host, unless it is there."""
        assert parameter.grad is not None
        gradient = local_part(parameter.grad)
        pair = self.copies.get(parameter)
        if pair is None:
            return _Pair(parameter=local_part(parameter), gradient=gradient)
        pair.gradient.copy_(gradient, non_blocking=True)
        return pair


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """A parameter and its gradient on the host."""

    parameter: Tensor
    gradient: Tensor

    @classmethod
    def like(cls, parameter: Tensor) -> "_Pair":
        copy = _zeros(parameter)
        copy.copy_(parameter.detach())
        return cls(parameter=copy, gradient=_zeros(parameter))


def _zeros(like: Tensor) -> Tensor:
    """Zeros on the host, in pinned memory if `like` is on a device."""
    return torch.zeros(like.shape, dtype=like.dtype, pin_memory=like.device.type != "cpu")


def _to_host(optimizer: torch.optim.Optimizer) -> None:
    """Move a loaded state back to the host.

    Loading takes its tensors to the parameters' device, where new parameters may lie already.
    """
    assert isinstance(optimizer, HostAdamW)
    for parameter, state in optimizer.state.items():
        for name in MOMENTS:
            state[name] = like(parameter, local_part(state[name]).cpu())
    optimizer.copy_parameters()
