"""The private names of torch that the engine stands on, in one place.

torch offers no public schedule that runs an order of one's own; its runtime does, and it gives
every schedule the same observable actions. A test holds each name against the installed torch.
"""

import operator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as _schedules

from traincope.engine.orders import Order

PRIVATE_NAMES = ("_PipelineScheduleRuntime", "_Action", "_PipelineScheduleRuntime._prepare_schedule_with_comms")
"""What this file takes from `torch.distributed.pipelining.schedules`."""


class Schedule(Protocol):
    """What the engine uses of a torch schedule."""

    def step(
        self, *args: Tensor, target: Tensor | None, losses: list[Tensor], return_outputs: bool
    ) -> Tensor | None: ...

    def eval(
        self, *args: Tensor, target: Tensor | None, losses: list[Tensor], return_outputs: bool
    ) -> Tensor | None: ...


def scheduled(stage: PipelineStage, *, orders: list[Order], microbatches: int, loss: Any) -> Schedule:
    """A runtime that runs `orders[stage]` on each stage, with torch's sends and receives between them.

    `loss(output, target)` is the microbatch's share of the loss: torch sums gradients as they are.
    """
    runtime: Any = _schedules._PipelineScheduleRuntime([stage], microbatches, loss_fn=loss, scale_grads=False)
    actions = {rank: [_schedules._Action.from_str(action) for action in order] for rank, order in enumerate(orders)}
    runtime._prepare_schedule_with_comms(actions)
    return runtime  # type: ignore[no-any-return]


DEAR_OPERATORS = (
    "aten.mm",
    "aten.bmm",
    "aten.addmm",
    "aten._scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_flash_attention_for_cpu",
    "aten._scaled_dot_product_efficient_attention",
    "aten._scaled_dot_product_cudnn_attention",
    "_c10d_functional.all_reduce",
    "_c10d_functional.all_gather_into_tensor",
    "_c10d_functional.reduce_scatter_tensor",
)
"""What linear layers, attention and tensor parallelism call: their outputs are worth keeping."""


def dear_operators() -> list[torch._ops.OpOverload]:
    return [operator.attrgetter(name)(torch.ops).default for name in DEAR_OPERATORS]
