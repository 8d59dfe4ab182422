"""The private names of torch that the engine uses, in one place.

torch has no public schedule that runs a given order. Its runtime does, and it gives each schedule the same observable
actions. A test checks each name against the installed torch.
"""

import operator
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed import distributed_c10d as _c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter as ReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather as DefaultAllGather
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllocMixin as DefaultAllocMixin
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as _schedules
from torch.distributed.tensor import DTensor

from traincope.plan.pipeline.actions import FORWARD, Action, Orders

if TYPE_CHECKING:
    from torch.distributed.optim import ZeroRedundancyOptimizer

PRIVATE_NAMES = (
    "_PipelineScheduleRuntime",
    "_PipelineScheduleRuntime._prepare_schedule_with_comms",
    "_Action",
    "_add_send_recv",
    "_add_unshard_reshard",
)
"""Names that this file takes from `torch.distributed.pipelining.schedules`."""


class Schedule:
    """Runs `orders[rank]` on each rank, with torch's sends and receives."""

    def __init__(self, stages: Sequence[PipelineStage], *, orders: Orders, microbatches: int, loss: Any) -> None:
        """`stages` are this rank's, lowest first.

        `loss(output, target)` is the microbatch's share of the loss: torch sums gradients without scaling.
        """
        self._runtime: Any = _schedules._PipelineScheduleRuntime(
            list(stages), microbatches, loss_fn=loss, scale_grads=False
        )
        self._runtime._prepare_schedule_with_comms(
            {rank: [_torch_action(action) for action in order] for rank, order in orders.items()}
        )
        self._training = self._runtime.pipeline_order_with_comms
        self._evaluation = _forward_only(orders, num_stages=stages[0].num_stages)

    def step(self, *args: Tensor, target: Tensor | None, losses: list[Tensor], **arguments: Tensor) -> None:
        """Forward and backward of a batch. On the last stage `losses` receives the microbatches' shares.

        `arguments` belong to the batch's sequences: they are split into microbatches with it, and passed to each stage.
        """
        self._runtime.pipeline_order_with_comms = self._training
        self._runtime.step(*args, target=target, losses=losses, return_outputs=False, **arguments)

    def eval(self, *args: Tensor, target: Tensor | None, losses: list[Tensor], **arguments: Tensor) -> None:
        """Forward only.

        torch's own evaluation also walks through the backwards, and fails if a rank has neighbouring stages.
        """
        self._runtime.pipeline_order_with_comms = self._evaluation
        self._runtime.eval(*args, target=target, losses=losses, return_outputs=False, **arguments)


def _torch_action(action: Action) -> _schedules._Action:
    torch_action: _schedules._Action = _schedules._Action.from_str(str(action))
    return torch_action


def _forward_only(orders: Orders, *, num_stages: int) -> dict[int, list[_schedules._Action]]:
    """The forwards of an order, as torch lowers it: with FSDP's gathers, sends and receives."""
    rank_of = {action.stage: rank for rank, order in orders.items() for action in order}
    forwards = {
        rank: _schedules._add_unshard_reshard([_torch_action(action) for action in order if action.kind == FORWARD])
        for rank, order in orders.items()
    }
    return _schedules._add_send_recv(forwards, stage_to_rank=rank_of.__getitem__, num_stages=num_stages)


COSTLY_OPERATORS = (
    "aten.mm",
    "aten.bmm",
    "aten.addmm",
    "aten._grouped_mm",
    "aten._scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_flash_attention_for_cpu",
    "aten._scaled_dot_product_efficient_attention",
    "aten._scaled_dot_product_cudnn_attention",
    "_c10d_functional.all_reduce",
    "_c10d_functional.all_gather_into_tensor",
    "_c10d_functional.reduce_scatter_tensor",
)
"""Operators of linear layers, attention and tensor parallelism. Their outputs are worth keeping."""


def costly_operators(*extra: str) -> list[torch._ops.OpOverload]:
    """Overloads of COSTLY_OPERATORS and of `extra` names."""
    return [operator.attrgetter(name)(torch.ops).default for name in (*COSTLY_OPERATORS, *extra)]


def flash_forward(query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
    """Attention (B, heads, S, d), and the logarithm of each row's sum of exponentials, fp32 (B, heads, S)."""
    result = _flash(query)(query, key, value, 0.0, causal)
    return result[0], result[1]


def flash_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, log_sum: Tensor, *, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value. `out` and `log_sum` may cover more keys than these."""
    saved = (gradient, query, key, value, out, log_sum)
    if query.device.type == "cpu":
        result = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(*saved, 0.0, causal)
    else:
        seed = torch.empty(2, dtype=torch.uint64, device=query.device)
        sizes = (None, None, query.shape[2], key.shape[2])
        result = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            *saved, *sizes, 0.0, causal, seed, seed.new_empty(())
        )
    return result[0], result[1], result[2]


def _flash(query: Tensor) -> Any:
    """Fused attention of the device.

    The GPU's accepts only 16-bit numbers. Without dropout its random state is never read.
    """
    aten = torch.ops.aten
    on_cpu = query.device.type == "cpu"
    return aten._scaled_dot_product_flash_attention_for_cpu if on_cpu else aten._scaled_dot_product_flash_attention


def group_named(name: str) -> ProcessGroup:
    """Process group of a name: operators take names, not groups."""
    resolve: Any = getattr(_c10d, "_resolve_process_group")  # noqa: B009 - torch's stubs do not export it
    group: ProcessGroup = resolve(name)
    return group


def unfold(mesh: DeviceMesh, axis: str, *, sizes: dict[str, int]) -> DeviceMesh:
    """The same ranks with one axis as several, outermost first.

    Each axis gets a group of its own. A named backend forces this even where torch would reuse the world's group.
    """
    backends: dict[str, Any] = dict.fromkeys(sizes, dist.get_backend())
    unfolded: DeviceMesh = mesh._unflatten(axis, tuple(sizes.values()), tuple(sizes), backend_override=backends)
    return unfolded


def in_backward() -> bool:
    """Return True while autograd runs on this thread."""
    task: int = torch._C._current_graph_task_id()
    return task >= 0


def innermost_saved_tensors_hooks() -> tuple[Callable[[Tensor], object], Callable[[Any], Tensor]]:
    """Functions (pack, unpack) of the innermost `saved_tensors_hooks` around the caller."""
    hooks: tuple[Callable[[Tensor], object], Callable[[Any], Tensor]] | None
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    assert hooks is not None
    return hooks


def scaled_product(a: Tensor, b: Tensor, *, scales: tuple[Tensor, Tensor], dtype: torch.dtype) -> Tensor:
    """(a x scales[0]) (b x scales[1]) for fp8 factors (N, K) and (K, M), with sums in fp32 and the result in `dtype`.

    Sides are multiples of 16. The operator reads the first factor by rows and the second by columns.
    """
    columns = b.t().contiguous().t()
    product: Tensor = torch._scaled_mm(
        a.contiguous(), columns, scale_a=scales[0], scale_b=scales[1], out_dtype=dtype, use_fast_accum=False
    )
    return product


def move_shards(module: FSDPModule, new: Callable[[Tensor], Tensor]) -> None:
    """Make FSDP keep this unit's shards in the tensors that `new` returns, one-dimensional with padding.

    Values are not copied. `nn.Module._apply` would put padded shards into memory of FSDP's own.
    """
    for group in module._get_fsdp_state()._fsdp_param_groups:
        for shard in group.fsdp_params:
            whole = new(shard._sharded_param_data)
            parameter: Any = shard.sharded_param
            local = parameter._local_tensor
            parameter._local_tensor = whole[: local.numel()].view(local.shape)
            shard._sharded_param_data = whole


def dtensor_like(like: DTensor, local: Tensor) -> Tensor:
    """DTensor sharded like `like` whose local piece is `local`.

    Public functions would move `local` to the mesh's device.
    """
    return DTensor(local, like._spec, requires_grad=False)


def zero_redundancy_optimizer() -> "type[ZeroRedundancyOptimizer]":
    """torch's ZeroRedundancyOptimizer, imported without its warning.

    The class is public. Its package compiles optimizers with `torch.jit`, which warns on import that it is deprecated.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim import ZeroRedundancyOptimizer
    return ZeroRedundancyOptimizer
