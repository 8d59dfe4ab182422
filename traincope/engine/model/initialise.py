"""Starting weights that depend only on a parameter's name and the seed, never on the layout."""

import hashlib
import math

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from traincope.engine.config import ModelConfig
from traincope.engine.ranks.local import local_part

STANDARD_DEVIATION = 0.02
"""Standard deviation of each matrix (GPT-2). Matrices that write to the residual stream divide it by sqrt(2 layers)."""

INTO_RESIDUAL = (
    "attention.out.weight",
    "feed_forward.down.weight",
    "feed_forward.shared.down.weight",
    "feed_forward.experts.down",
)


@torch.no_grad()
def initialise(model: nn.Module, config: ModelConfig, *, seed: int) -> None:
    """Fill each parameter in place, whole or sharded. One whole parameter is in memory at a time."""
    for name, parameter in model.named_parameters():
        value = _starting_value(name, parameter.shape, config=config, seed=seed).to(parameter.device)
        local_part(parameter).copy_(_part(value, parameter))


def _starting_value(name: str, shape: torch.Size, *, config: ModelConfig, seed: int) -> Tensor:
    if len(shape) == 1:
        return torch.ones(shape)
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    into_residual = name.endswith(INTO_RESIDUAL)
    scale = STANDARD_DEVIATION / math.sqrt(2 * config.layers) if into_residual else STANDARD_DEVIATION
    return torch.normal(0.0, scale, shape, generator=generator)


def _part(value: Tensor, parameter: Tensor) -> Tensor:
    """Cut this rank's part out of `value` without communication.

    The innermost mesh axis cuts first: FSDP shards what tensor parallelism has left on a rank.
    """
    if not isinstance(parameter, DTensor):
        return value
    mesh = parameter.device_mesh
    for axis in reversed(range(mesh.ndim)):
        cut: int | None = getattr(parameter.placements[axis], "dim", None)
        if cut is not None:
            pieces, rank = value.chunk(mesh.size(axis), dim=cut), mesh.get_local_rank(axis)
            value = pieces[rank] if rank < len(pieces) else value.narrow(cut, 0, 0)
    return value
