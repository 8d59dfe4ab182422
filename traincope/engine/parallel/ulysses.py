"""Causal attention over split sequences: ranks exchange heads for tokens (DeepSpeed-Ulysses).

Jacobs et al. 2023, arXiv:2309.14509. One all-to-all before attention gives a rank all tokens of heads / n, and one
after it returns the result. Attention itself is plain, over the whole sequence. Rank i has the i-th of n equal pieces.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from traincope.engine.model.attention import causal_attention
from traincope.engine.ranks.torch_private import group_named

OPERATOR = "traincope.exchange"


def ulysses_attention(query: Tensor, key: Tensor, value: Tensor, *, group: dist.ProcessGroup) -> Tensor:
    """This rank's rows of softmax(q k^T / sqrt(d)) v. All tensors are (B, heads, S / n, d).

    n divides the number of heads, also the smaller number of key and value heads.
    """
    ranks = dist.get_world_size(group)
    by_rank = [tensor.unflatten(1, (ranks, -1)) for tensor in (query, key, value)]
    arrived = exchange(torch.cat(by_rank, dim=2).movedim(1, 0).contiguous(), group.group_name)
    heads = [tensor.shape[2] for tensor in by_rank]
    mixed = causal_attention(*arrived.movedim(0, 2).flatten(2, 3).split(heads, dim=1))
    returned = exchange(mixed.unflatten(2, (ranks, -1)).movedim(2, 0).contiguous(), group.group_name)
    result: Tensor = returned.movedim(0, 1).flatten(1, 2)
    return result


@torch.library.custom_op("traincope::exchange", mutates_args=())
def exchange(tensor: Tensor, group: str) -> Tensor:
    """Send the i-th of n parts to rank i; the i-th part of the result comes from rank i. Shape (n, ...), contiguous."""
    arrived = torch.empty_like(tensor)
    dist.all_to_all_single(arrived, tensor, group=group_named(group))
    return arrived


def _save(ctx: Any, inputs: tuple[Tensor, str], output: Tensor) -> None:  # noqa: ARG001 - torch calls it by these names
    ctx.group = inputs[1]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return exchange(gradient.contiguous(), ctx.group), None


exchange.register_autograd(_backward, setup_context=_save)
