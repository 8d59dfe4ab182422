"""Rows of tokens to the ranks that have their experts, and back.

Lepikhin et al. 2020 (GShard, arXiv:2006.16668): one all-to-all takes every token's row to the rank that has its
expert, another one brings it back.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from traincope.engine.slots import Slots
from traincope.engine.torch_private import group_named

OPERATOR = "traincope.exchange_rows"


def through_ranks(
    experts: Callable[[Tensor, Tensor], Tensor], rows: Tensor, slots: Slots, *, group: dist.ProcessGroup
) -> Tensor:
    """Rows (N, H), in the order of all experts, through those of every rank, and back.

    `experts` takes the rows of those on this rank, in their order, and how many each has.
    """
    ranks, name = dist.get_world_size(group), group.group_name
    counts = slots.counts.view(ranks, -1)
    arriving = counts if slots.even else _exchange(counts.contiguous(), [1] * ranks, [1] * ranks, name)
    if slots.even:
        there = here = [slots.num_rows // ranks] * ranks
    else:
        there, here = torch.stack([counts.sum(dim=1), arriving.sum(dim=1)]).tolist()
    arrived = _exchange(rows, here, there, name)
    order = _by_expert(arriving, num_rows=sum(here))
    passed = experts(arrived.index_select(0, order), arriving.sum(dim=0))
    returning = torch.empty_like(passed).index_copy(0, order, passed)
    returned: Tensor = _exchange(returning, there, here, name)
    return returned


def _by_expert(arriving: Tensor, *, num_rows: int) -> Tensor:
    """Rows (ranks, experts) that lie by rank and then by expert -> their order by expert and then by rank."""
    ranks, experts = arriving.shape
    numbers = torch.arange(experts, device=arriving.device).repeat(ranks)
    return numbers.repeat_interleave(arriving.flatten(), output_size=num_rows).argsort(stable=True)


@torch.library.custom_op("traincope::exchange_rows", mutates_args=())
def _exchange(rows: Tensor, here: Sequence[int], there: Sequence[int], group: str) -> Tensor:
    """Rows (N, ...), `there[i]` of which go to rank i; `here[i]` come from it."""
    arrived = rows.new_empty((sum(here), *rows.shape[1:]))
    dist.all_to_all_single(arrived, rows, list(here), list(there), group=group_named(group))
    return arrived


def _save(ctx: Any, inputs: tuple[Tensor, list[int], list[int], str], output: Tensor) -> None:  # noqa: ARG001
    _, ctx.here, ctx.there, ctx.group = inputs


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
    return _exchange(gradient.contiguous(), ctx.there, ctx.here, ctx.group), None, None, None


_exchange.register_autograd(_backward, setup_context=_save)
