"""Expert parallelism: the experts of every layer spread over the `ep` axis, tokens sent to them and back.

Lepikhin et al. 2020 (GShard, arXiv:2006.16668): one all-to-all takes every token's row to the rank
that has its expert, another one brings it back. `ep` is carved out of the ranks that FSDP shards
over: all else is sharded over those, an expert over the ranks of `efsdp`, which have the same ones.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from traincope.engine.config import Config
from traincope.engine.expert_load import LoadCounter
from traincope.engine.mesh import Layout
from traincope.engine.model import GPT, Block
from traincope.engine.moe import Experts, MixtureOfExperts
from traincope.engine.router import Router
from traincope.engine.slots import Slots
from traincope.engine.torch_private import group_named

OPERATOR = "traincope.exchange_rows"


def apply_expert_parallel(model: GPT, config: Config, *, layout: Layout) -> None:
    """Tell each layer's router whose tokens it sees, and leave every rank of `ep` its experts.

    Of a model on the meta device, in place.
    """
    pieces = config.train.accumulation * config.parallel.microbatches
    for mixture in _mixtures(model):
        mixture.router.loss_share /= pieces
        mixture.router.sequence_group = layout.group("cp")
        group = layout.group("ep")
        if group is not None:
            _cut(mixture.experts, layout=layout)
            mixture.through = functools.partial(through_ranks, group=group)


def spread_experts(model: GPT, *, layout: Layout) -> list[Experts]:
    """Each layer's; none without an `ep` axis, where experts are parameters like all others."""
    return [mixture.experts for mixture in _mixtures(model)] if layout.group("ep") is not None else []


def routers_of(model: GPT) -> list[Router]:
    return [mixture.router for mixture in _mixtures(model)]


def load_counters(modules: Iterable[nn.Module]) -> dict[int, LoadCounter]:
    """Layer -> the counter of its experts' load, of all the layers in a rank's stages, wrapped or not."""
    models = [model for module in modules for model in module.modules() if isinstance(model, GPT)]
    blocks = {int(layer): block for model in models for layer, block in model.blocks.items()}
    return {
        layer: block.feed_forward.load
        for layer, block in blocks.items()
        if isinstance(block, Block) and isinstance(block.feed_forward, MixtureOfExperts)
    }


def _mixtures(model: GPT) -> list[MixtureOfExperts]:
    return [module for module in model.modules() if isinstance(module, MixtureOfExperts)]


def _cut(experts: Experts, *, layout: Layout) -> None:
    for name, weight in list(experts.named_parameters()):
        part = distribute_tensor(weight, layout.submesh("ep"), [Shard(0)])
        setattr(experts, name, nn.Parameter(part))


def average_expert_gradients(parameters: Sequence[nn.Parameter], *, layout: Layout) -> None:
    """An expert has met the tokens of all ranks of `ep`, whose loss is a mean over each one's own: 1 / ep of it.

    FSDP divides by the ranks of `efsdp` alone.
    """
    for parameter in parameters:
        gradient = parameter.grad
        if isinstance(gradient, DTensor) and "ep" in (gradient.device_mesh.mesh_dim_names or ()):
            gradient.to_local().div_(layout.size("ep"))


def through_ranks(experts: Experts, rows: Tensor, slots: Slots, *, group: dist.ProcessGroup) -> Tensor:
    """Rows (N, H), in the order of all experts, through those of every rank, and back."""
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
