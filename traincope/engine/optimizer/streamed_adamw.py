"""AdamW with moments in files, which pass through memory one block at a time.

This follows ZeRO-Infinity (arXiv:2104.07857). Each block's moments are read to the device of its parameters, updated by
torch's own kernel, and written back. Reading and updating take turns; nothing is prefetched.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from traincope.engine.optimizer.adamw_state import MOMENTS, defaults, like, update
from traincope.engine.ranks.local import local_part
from traincope.engine.sharing.mapped import MappedTensor


class StreamedAdamW(torch.optim.Optimizer):
    """torch.optim.AdamW to the bit. `state` has the same entries; its moments are views of the files."""

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        blocks: Iterable[Sequence[nn.Parameter]],
        lr: float,
        betas: tuple[float, float],
        directory: str | None,
    ) -> None:
        """`blocks` hold each parameter of `groups` once. Raises TrainingError if `directory` has no room."""
        super().__init__(groups, defaults(lr=lr, betas=betas))
        self._blocks = [_Block.of(parameters, directory=directory) for parameters in blocks]
        for block in self._blocks:
            for parameter, moments in zip(block.parameters, block.split(block.file.tensor), strict=True):
                step = torch.zeros((), device=parameter.device)
                self.state[parameter] = {"step": step} | {
                    name: like(parameter, moment) for name, moment in zip(MOMENTS, moments, strict=True)
                }
        self.register_load_state_dict_post_hook(_to_files)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update each parameter that has a gradient. Gradients exist already, so `closure` must be None."""
        assert closure is None
        settings = {parameter: group for group in self.param_groups for parameter in group["params"]}
        for block in self._blocks:
            self._update_block(block, settings)
            block.file.release_pages()

    def _update_block(self, block: "_Block", settings: Mapping[nn.Parameter, dict[str, Any]]) -> None:
        """Update one block. Its moments stay in memory until this returns."""
        in_memory = block.file.tensor.to(block.device, copy=True)
        for parameter, moments in zip(block.parameters, block.split(in_memory), strict=True):
            if parameter.grad is not None:
                update(
                    local_part(parameter),
                    local_part(parameter.grad),
                    moments,
                    step=self.state[parameter]["step"],
                    settings=settings[parameter],
                )
        block.file.tensor.copy_(in_memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    parameters: tuple[nn.Parameter, ...]
    file: MappedTensor
    """Moments of each parameter, first one moment, then the other."""

    @classmethod
    def of(cls, parameters: Sequence[nn.Parameter], *, directory: str | None) -> "_Block":
        count = sum(local_part(parameter).numel() for parameter in parameters)
        file = MappedTensor.zeros(len(MOMENTS) * count, dtype=torch.float32, directory=directory)
        return cls(parameters=tuple(parameters), file=file)

    @property
    def device(self) -> torch.device:
        return self.parameters[0].device

    def split(self, flat: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the two moments of each parameter, as views."""
        start = 0
        for parameter in self.parameters:
            local = local_part(parameter)
            moments = flat[start : start + 2 * local.numel()].view(2, *local.shape)
            start += 2 * local.numel()
            yield moments[0], moments[1]


def _to_files(optimizer: torch.optim.Optimizer) -> None:
    """Copy a loaded state into the files, because loading replaces the tensors."""
    assert isinstance(optimizer, StreamedAdamW)
    for block in optimizer._blocks:
        for parameter, moments in zip(block.parameters, block.split(block.file.tensor), strict=True):
            state = optimizer.state[parameter]
            for name, moment in zip(MOMENTS, moments, strict=True):
                moment.copy_(local_part(state[name]))
                state[name] = like(parameter, moment)
