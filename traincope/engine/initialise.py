"""Starting weights that depend on a parameter's name and the seed, never on the layout."""

import hashlib
import math

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from traincope.engine.config import ModelConfig

STANDARD_DEVIATION = 0.02
"""Of every matrix (GPT-2); those that write to the residual stream divide it by sqrt(2 layers)."""


@torch.no_grad()
def initialise(model: nn.Module, config: ModelConfig, *, seed: int) -> None:
    """Fill every parameter, whole or sharded, in place. One whole parameter is in memory at a time."""
    for name, parameter in model.named_parameters():
        parameter.copy_(_like(_starting_value(name, parameter.shape, config=config, seed=seed), parameter))


def _starting_value(name: str, shape: torch.Size, *, config: ModelConfig, seed: int) -> Tensor:
    if len(shape) == 1:
        return torch.ones(shape)
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    into_residual = name.endswith(("attention.out.weight", "feed_forward.down.weight"))
    scale = STANDARD_DEVIATION / math.sqrt(2 * config.layers) if into_residual else STANDARD_DEVIATION
    return torch.normal(0.0, scale, shape, generator=generator)


def _like(value: Tensor, parameter: Tensor) -> Tensor:
    """The rank's own part of `value`, cut without any communication."""
    value = value.to(parameter.device)
    if not isinstance(parameter, DTensor):
        return value
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
