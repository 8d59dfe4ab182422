"""Tensor parallelism: each matrix product is split over the `tp` axis (Shoeybi et al. 2019, arXiv:1909.08053).

Query, key, value, gate and up are split by columns (heads, inner channels), out and down by rows, embedding and output
by vocabulary. With sequence parallelism (Korthikanti et al. 2022, arXiv:2205.05198) the residual stream and the norms
are split along the sequence. An all-gather before each part of a block and a reduce-scatter after it replace the
all-reduce.

Experts are split like the feed-forward that they replace. Each rank routes whole sequences, all ranks alike. If experts
are also spread over ranks, `expert_tensor_parallel` moves the rows.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from traincope.engine.model.model import GPT, Block
from traincope.engine.model.moe import MixtureOfExperts
from traincope.engine.ranks.mesh import Layout


def apply_tensor_parallel(model: GPT, *, layout: Layout, sequence_parallel: bool) -> None:
    """Split a model on the meta device in place. Does nothing without a `tp` axis.

    From block to block, and from stage to stage, activations are plain tensors: this rank's (B, S / tp, H), or (B, S,
    H) without sequence parallelism. The last stage returns a DTensor (B, S, V) split along V, for `next_token_loss`.
    """
    if layout.group("tp") is None:
        return
    mesh = layout.submesh("tp")
    parallelize_module(model, mesh, _ends_plan(model, sequence_parallel=sequence_parallel))
    for block in model.blocks.values():
        assert isinstance(block, Block)
        mixture = block.feed_forward if isinstance(block.feed_forward, MixtureOfExperts) else None
        if mixture is not None:
            _cut_experts(mixture, mesh=mesh, stream=_stream_placement(sequence_parallel=sequence_parallel))
        dense = "feed_forward" if mixture is None else "feed_forward.shared" if mixture.shared is not None else None
        parallelize_module(block, mesh, _block_plan(dense, sequence_parallel=sequence_parallel))


def loss_over_vocabulary(layout: Layout) -> AbstractContextManager[None]:
    """Context in which a cross entropy never gathers logits. Does nothing without a `tp` axis."""
    return loss_parallel() if layout.size("tp") > 1 else nullcontext()


def _ends_plan(model: GPT, *, sequence_parallel: bool) -> dict[str, ParallelStyle]:
    stream = _stream_placement(sequence_parallel=sequence_parallel)
    plan: dict[str, ParallelStyle] = {}
    if model.embedding is not None:
        plan["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=stream)
    if model.output is not None:
        plan["output"] = ColwiseParallel(input_layouts=stream, output_layouts=Shard(-1), use_local_output=False)
    if model.norm is not None and sequence_parallel:
        plan["norm"] = SequenceParallel()
    return plan


def _block_plan(dense: str | None, *, sequence_parallel: bool) -> dict[str, ParallelStyle]:
    """Parallel styles of a block. `dense` is the feed-forward that each token passes, if there is one.

    Without sequence parallelism norms stay plain: each tp rank has the same input, so the same gradient.
    """
    stream = _stream_placement(sequence_parallel=sequence_parallel)
    columns, rows = ["attention.query", "attention.key", "attention.value"], ["attention.out"]
    plan: dict[str, ParallelStyle] = {}
    for part in ("attention", dense):
        if part is not None:
            plan[part] = PrepareModuleInput(input_layouts=stream, desired_input_layouts=Replicate())
    if dense is not None:
        columns, rows = [*columns, f"{dense}.gate", f"{dense}.up"], [*rows, f"{dense}.down"]
    plan |= {layer: ColwiseParallel() for layer in columns}
    plan |= {layer: RowwiseParallel(output_layouts=stream) for layer in rows}
    if sequence_parallel:
        plan |= {"attention_norm": SequenceParallel(), "feed_forward_norm": SequenceParallel()}
    return plan


def _cut_experts(mixture: MixtureOfExperts, *, mesh: DeviceMesh, stream: Shard | Replicate) -> None:
    """Give each rank some inner channels of each expert, so that its output is a part of a sum.

    The gradients of the input, and of the router, which has seen only that part, are parts of a sum too. The balance
    loss, which each rank knows whole, is divided by the ranks.
    """

    def enter(x: Tensor) -> Tensor:
        cut = x if isinstance(x, DTensor) else DTensor.from_local(x, mesh, [stream], run_check=False)
        return cut.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])

    def leave(mixed: Tensor) -> Tensor:
        parts = DTensor.from_local(mixed, mesh, [Partial()], run_check=False)
        return parts.redistribute(placements=[stream]).to_local()

    mixture.enter, mixture.leave = enter, leave
    mixture.router.loss_share /= mesh.size()
    _place(mixture.router, "weight", mesh, Replicate())
    for name, dim in (("gate", 2), ("up", 2), ("down", 1)):
        _place(mixture.experts, name, mesh, Shard(dim))


def _place(module: nn.Module, name: str, mesh: DeviceMesh, placement: Shard | Replicate) -> None:
    setattr(module, name, nn.Parameter(distribute_tensor(getattr(module, name), mesh, [placement])))


def _stream_placement(*, sequence_parallel: bool) -> Shard | Replicate:
    return Shard(1) if sequence_parallel else Replicate()


def sum_partial_gradients(parameters: Sequence[nn.Parameter], *, layout: Layout) -> None:
    """Sum gradients of which each rank has a part: norms under sequence parallelism, and routers.

    One all-reduce sums all of them. FSDP sums its own gradients as it reduces them, so those are whole already.
    """
    partial = [
        (parameter, gradient) for parameter in parameters if (gradient := _partial_gradient(parameter)) is not None
    ]
    if not partial:
        return
    shares = [gradient.to_local() for _, gradient in partial]
    flat = torch.cat([share.flatten() for share in shares])
    dist.all_reduce(flat, group=layout.group("tp"))
    for (parameter, gradient), summed in zip(partial, flat.split([share.numel() for share in shares]), strict=True):
        whole = [Replicate()] * gradient.device_mesh.ndim
        parameter.grad = DTensor.from_local(summed.view(gradient.shape), gradient.device_mesh, whole, run_check=False)


def _partial_gradient(parameter: nn.Parameter) -> DTensor | None:
    gradient = parameter.grad
    if isinstance(gradient, DTensor) and any(placement.is_partial() for placement in gradient.placements):
        return gradient
    return None
