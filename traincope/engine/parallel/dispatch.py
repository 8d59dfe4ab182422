"""Send rows of tokens to the ranks of their experts, and back.

Lepikhin et al. 2020 (GShard, arXiv:2006.16668): one all-to-all takes each token's row to the rank of its expert, and
another returns it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from traincope.engine.model.slots import Slots
from traincope.engine.ranks.torch_private import group_named

OPERATOR = "traincope.exchange_rows"


def run_remote_experts(
    experts: Callable[[Tensor, Tensor], Tensor], rows: Tensor, slots: Slots, *, group: dist.ProcessGroup
) -> Tensor:
    """Run rows (N, H), ordered by expert, through the experts of all ranks.

    `experts` takes the rows of this rank's experts in their order, and the number of rows of each.
    """
    ranks, name = dist.get_world_size(group), group.group_name
    counts = slots.counts.view(ranks, -1)
    arriving = counts if slots.even else _exchange(counts.contiguous(), [1] * ranks, [1] * ranks, name)
    if slots.even:
        sent = received = [slots.num_rows // ranks] * ranks
    else:
        sent, received = torch.stack([counts.sum(dim=1), arriving.sum(dim=1)]).tolist()
    arrived = _exchange(rows, received, sent, name)
    order = _by_expert(arriving, num_rows=sum(received))
    passed = experts(arrived.index_select(0, order), arriving.sum(dim=0))
    returning = torch.empty_like(passed).index_copy(0, order, passed)
    returned: Tensor = _exchange(returning, sent, received, name)
    return returned


def _by_expert(arriving: Tensor, *, num_rows: int) -> Tensor:
    """Order of rows by expert and then by rank, for rows (ranks, experts) that lie by rank and then by expert."""
    ranks, experts = arriving.shape
    numbers = torch.arange(experts, device=arriving.device).repeat(ranks)
    return numbers.repeat_interleave(arriving.flatten(), output_size=num_rows).argsort(stable=True)


@torch.library.custom_op("traincope::exchange_rows", mutates_args=())
def _exchange(rows: Tensor, received: Sequence[int], sent: Sequence[int], group: str) -> Tensor:
    """Exchange rows (N, ...): send `sent[i]` rows to rank i, and receive `received[i]` rows from it."""
    arrived = rows.new_empty((sum(received), *rows.shape[1:]))
    dist.all_to_all_single(arrived, rows, list(received), list(sent), group=group_named(group))
    return arrived


def _save(ctx: Any, inputs: tuple[Tensor, list[int], list[int], str], output: Tensor) -> None:  # noqa: ARG001
    _, ctx.received, ctx.sent, ctx.group = inputs


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
    return _exchange(gradient.contiguous(), ctx.sent, ctx.received, ctx.group), None, None, None


_exchange.register_autograd(_backward, setup_context=_save)
