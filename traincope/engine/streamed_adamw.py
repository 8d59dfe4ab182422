"""AdamW whose moments lie in files and pass through memory one block at a time (after ZeRO-Infinity, arXiv:2104.07857).

Each block's moments are read to where its parameters are, updated there by torch's own kernel, and written back.
Reading and updating take turns; nothing is fetched ahead.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw

from traincope.engine.local import local_part
from traincope.engine.mapped import MappedTensor

MOMENTS = ("exp_avg", "exp_avg_sq")
"""As torch.optim.AdamW names them."""


class StreamedAdamW(torch.optim.Optimizer):
    """torch.optim.AdamW to the bit; `state` has the same entries, whose moments are views of the files."""

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        blocks: Iterable[Sequence[nn.Parameter]],
        lr: float,
        betas: tuple[float, float],
        directory: str | None,
    ) -> None:
        """`blocks` hold every parameter of `groups` once; raises TrainingError if `directory` has no room."""
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": 1e-8, "weight_decay": 0.0})
        self._blocks = [_Block.of(parameters, directory=directory) for parameters in blocks]
        for block in self._blocks:
            for parameter, moments in zip(block.parameters, block.split(block.file.tensor), strict=True):
                step = torch.zeros((), device=parameter.device)
                self.state[parameter] = {"step": step} | {
                    name: _like(parameter, moment) for name, moment in zip(MOMENTS, moments, strict=True)
                }
        self.register_load_state_dict_post_hook(_to_files)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient; they are there already, so a closure has no place."""
        assert closure is None
        settings = {parameter: group for group in self.param_groups for parameter in group["params"]}
        for block in self._blocks:
            self._update_block(block, settings)
            block.file.let_go()

    def _update_block(self, block: "_Block", settings: Mapping[nn.Parameter, dict[str, Any]]) -> None:
        """Its moments are in memory until this returns."""
        in_memory = block.file.tensor.to(block.device, copy=True)
        for parameter, moments in zip(block.parameters, block.split(in_memory), strict=True):
            if parameter.grad is not None:
                _update(parameter, moments, step=self.state[parameter]["step"], settings=settings[parameter])
        block.file.tensor.copy_(in_memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    parameters: tuple[nn.Parameter, ...]
    file: MappedTensor
    """Of each parameter first one moment, then the other."""

    @classmethod
    def of(cls, parameters: Sequence[nn.Parameter], *, directory: str | None) -> "_Block":
        count = sum(local_part(parameter).numel() for parameter in parameters)
        file = MappedTensor.zeros(len(MOMENTS) * count, dtype=torch.float32, directory=directory)
        return cls(parameters=tuple(parameters), file=file)

    @property
    def device(self) -> torch.device:
        return self.parameters[0].device

    def split(self, flat: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The two moments of each parameter, as views."""
        start = 0
        for parameter in self.parameters:
            local = local_part(parameter)
            moments = flat[start : start + 2 * local.numel()].view(2, *local.shape)
            start += 2 * local.numel()
            yield moments[0], moments[1]


def _update(parameter: nn.Parameter, moments: tuple[Tensor, Tensor], *, step: Tensor, settings: dict[str, Any]) -> None:
    assert parameter.grad is not None
    beta1, beta2 = settings["betas"]
    adamw(
        [local_part(parameter)],
        [local_part(parameter.grad)],
        [moments[0]],
        [moments[1]],
        [],
        [step],
        fused=True,
        amsgrad=False,
        beta1=beta1,
        beta2=beta2,
        lr=settings["lr"],
        weight_decay=settings["weight_decay"],
        eps=settings["eps"],
        maximize=False,
    )


def _to_files(optimizer: torch.optim.Optimizer) -> None:
    """Loading a state replaces its tensors."""
    assert isinstance(optimizer, StreamedAdamW)
    for block in optimizer._blocks:
        for parameter, moments in zip(block.parameters, block.split(block.file.tensor), strict=True):
            state = optimizer.state[parameter]
            for name, moment in zip(MOMENTS, moments, strict=True):
                moment.copy_(local_part(state[name]))
                state[name] = _like(parameter, moment)


def _like(parameter: nn.Parameter, local: Tensor) -> Tensor:
    """`local` as the piece of a tensor that is cut as `parameter` is."""
    if not isinstance(parameter, DTensor):
        return local
    whole: Tensor = DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
    return whole
