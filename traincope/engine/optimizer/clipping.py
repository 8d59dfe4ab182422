"""Norm of the whole gradient, wherever its pieces lie, and clipping by it."""

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from traincope.engine.ranks.local import local_part
from traincope.engine.ranks.mesh import SHARD_AXES, Layout


def gradient_norm(parameters: Sequence[nn.Parameter], *, layout: Layout) -> Tensor:
    """2-norm of the full model's gradient, fp32 scalar, equal on all ranks."""
    return global_norm([parameter.grad for parameter in parameters if parameter.grad is not None], layout=layout)


def global_norm(pieces: Sequence[Tensor], *, layout: Layout) -> Tensor:
    """2-norm of all parameters' tensors together, fp32 scalar, equal on all ranks. `pieces` lie as parameters do.

    Along axes that split parameters, each rank adds the squares of its own pieces. A parameter that is whole on all n
    ranks of such an axis adds 1/n on each. Along the other axes the pieces are equal and count once. The norm is on the
    mesh's device, wherever the pieces are.
    """
    squares = torch.stack([_squares(piece, layout=layout) for piece in pieces]).sum()
    if layout.mesh is not None:
        squares = squares.to(layout.mesh.device_type)
    for axis in _partitioning_axes(layout):
        group = layout.group(axis)
        if group is not None and group.size() > 1:
            dist.all_reduce(squares, group=group)
    return squares.sqrt()


@torch.no_grad()
def clip(parameters: Sequence[nn.Parameter], *, norm: Tensor, limit: float) -> None:
    """Scale gradients in place so that their norm, now `norm`, is at most `limit`. The host does not wait for it."""
    scale_gradients(parameters, (limit / (norm + 1e-6)).clamp(max=1.0))


@torch.no_grad()
def scale_gradients(parameters: Sequence[nn.Parameter], factor: Tensor) -> None:
    """Multiply gradients in place by a scalar on any device."""
    for gradient in _local_gradients(parameters):
        gradient.mul_(factor.to(gradient.device))


def _partitioning_axes(layout: Layout) -> tuple[str, ...]:
    """Axes whose ranks may hold different parameters, or different pieces of one."""
    return layout.shard_axis, "tp", "pp"


def _squares(gradient: Tensor, *, layout: Layout) -> Tensor:
    squares: Tensor = torch.linalg.vector_norm(local_part(gradient), dtype=torch.float32).square()
    copies = math.prod(layout.size(axis) for axis in _partitioning_axes(layout) if not _is_cut(gradient, axis=axis))
    return squares / copies


def _is_cut(gradient: Tensor, *, axis: str) -> bool:
    """Return True if the ranks along `axis` hold different pieces.

    Pipeline stages always do, and experts are split twice.
    """
    if axis == "pp" or not isinstance(gradient, DTensor):
        return axis == "pp"
    placements = dict(zip(gradient.device_mesh.mesh_dim_names or (), gradient.placements, strict=True))
    if axis in SHARD_AXES and "ep" in placements:
        return True
    return axis in placements and not placements[axis].is_replicate()


def _local_gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    return [local_part(parameter.grad) for parameter in parameters if parameter.grad is not None]
