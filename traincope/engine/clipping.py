"""The norm of the whole gradient, wherever its pieces lie, and clipping by it."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from traincope.engine.mesh import Layout

PARTITIONING_AXES = ("fsdp", "pp")
"""Axes whose ranks hold different parameters; along the others gradients are equal and count once."""


def gradient_norm(parameters: Sequence[nn.Parameter], *, layout: Layout) -> Tensor:
    """2-norm of the full model's gradient, fp32 scalar, equal on all ranks."""
    norms = [torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in _local_gradients(parameters)]
    squares = torch.stack(norms).square().sum()
    for axis in PARTITIONING_AXES:
        group = layout.group(axis)
        if group is not None:
            dist.all_reduce(squares, group=group)
    return squares.sqrt()


@torch.no_grad()
def clip(parameters: Sequence[nn.Parameter], *, norm: Tensor, limit: float) -> None:
    """Scale gradients in place so that their norm, now `norm`, is at most `limit`; the host never waits for it."""
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    for gradient in _local_gradients(parameters):
        gradient.mul_(factor)


def _local_gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return [gradient.to_local() if isinstance(gradient, DTensor) else gradient for gradient in gradients]
