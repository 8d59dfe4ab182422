"""Functions of torch that a tested release has renamed."""

from typing import Any

import torch.distributed as dist
from torch import Tensor


def gather_into(
    target: Tensor, source: Tensor, *, group: dist.ProcessGroup | None = None, async_op: bool = False
) -> Any:
    """Call `all_gather_into_tensor`, which torch 2.13 renamed."""
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return gather(target, source, group=group, async_op=async_op)


def scatter_sum_into(target: Tensor, source: Tensor, *, group: dist.ProcessGroup | None = None) -> None:
    """Call `reduce_scatter_tensor`, which torch 2.13 renamed."""
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    scatter(target, source, group=group)
