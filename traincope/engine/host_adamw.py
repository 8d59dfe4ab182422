"""AdamW on the host: moments lie in the CPU's memory and are updated there (ZeRO-Offload, Ren et al. 2021,
arXiv:2101.06840).

Parameters and gradients stay on the device. A step copies the gradients to the host, where AdamW has parameters of its
own, and each of these back as it is updated, while the next one is. So 4 bytes a number travel each way, and the device
keeps 8 of 16. On a CPU the host's memory is where all of it lies: there it is torch's AdamW, and saves nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from traincope.engine.adamw_state import MOMENTS, defaults, like, update
from traincope.engine.local import local_part


class HostAdamW(torch.optim.Optimizer):
    """torch.optim.AdamW to the bit, as the CPU computes it; `state` has the same entries, in the host's memory.

    The host's parameters are those of when it is made, or when a state was last loaded: whoever loads parameters too
    loads them first.
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

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient; they are there already, so a closure has no place."""
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
        """On its way, where it is not here."""
        assert parameter.grad is not None
        gradient = local_part(parameter.grad)
        pair = self.copies.get(parameter)
        if pair is None:
            return _Pair(parameter=local_part(parameter), gradient=gradient)
        pair.gradient.copy_(gradient, non_blocking=True)
        return pair


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """What the host updates, and by what."""

    parameter: Tensor
    gradient: Tensor

    @classmethod
    def like(cls, parameter: Tensor) -> "_Pair":
        copy = _zeros(parameter)
        copy.copy_(parameter.detach())
        return cls(parameter=copy, gradient=_zeros(parameter))


def _zeros(like: Tensor) -> Tensor:
    """On the host, in memory that a device can read by itself if there is one."""
    return torch.zeros(like.shape, dtype=like.dtype, pin_memory=like.device.type != "cpu")


def _to_host(optimizer: torch.optim.Optimizer) -> None:
    """Loading a state takes its tensors to the parameters' device, where new parameters may lie already."""
    assert isinstance(optimizer, HostAdamW)
    for parameter, state in optimizer.state.items():
        for name in MOMENTS:
            state[name] = like(parameter, local_part(state[name]).cpu())
    for parameter, pair in optimizer.copies.items():
        pair.parameter.copy_(local_part(parameter).detach())
