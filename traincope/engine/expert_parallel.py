"""Expert parallelism: the experts of every layer spread over the `ep` axis, tokens sent to them and back.

`ep` is carved out of the ranks that FSDP shards over: all else is sharded over those, an expert over the ranks of
`efsdp`, which have the same ones. Of experts that tensor parallelism has cut it spreads the parts.
"""

import functools
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from traincope.engine.config import Config
from traincope.engine.context_parallel import positions_of
from traincope.engine.cut_and_spread import send_shares
from traincope.engine.cut_capacity import assign_cut
from traincope.engine.dispatch import through_ranks
from traincope.engine.expert_load import LoadCounter
from traincope.engine.mesh import Layout
from traincope.engine.model import GPT, Block
from traincope.engine.moe import Experts, MixtureOfExperts
from traincope.engine.router import Router


def apply_expert_parallel(model: GPT, config: Config, *, layout: Layout) -> None:
    """Tell each layer's router whose tokens it sees, and leave every rank of `ep` its experts.

    Of a model on the meta device, in place.
    """
    pieces = config.train.accumulation * config.parallel.microbatches
    for mixture in _mixtures(model):
        mixture.router.loss_share /= pieces
        _share_sequences(mixture, config, group=layout.group("cp"))
        group = layout.group("ep")
        if group is None:
            continue
        _cut(mixture.experts, layout=layout)
        mixture.through = functools.partial(through_ranks, group=group)
        if layout.group("tp") is not None:
            cut = config.parallel.sequence_parallel
            send_shares(mixture, group=group, mesh=layout.submesh("tp"), sequence_parallel=cut)


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


def _share_sequences(mixture: MixtureOfExperts, config: Config, *, group: dist.ProcessGroup | None) -> None:
    """The balance loss and a capacity are of whole sequences; `group` has the rest of these, None: there is none."""
    mixture.router.sequence_group = group
    capacity = mixture.config.capacity(config.model.sequence)
    if group is not None and capacity is not None:
        mixture.assign = functools.partial(
            assign_cut,
            experts=mixture.config.number,
            capacity=capacity,
            positions=[positions_of(config, rank=rank) for rank in range(config.parallel.cp)],
            group=group,
        )


def _cut(experts: Experts, *, layout: Layout) -> None:
    for name, weight in list(experts.named_parameters()):
        channels = weight.placements if isinstance(weight, DTensor) else ()
        whole = torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)
        part = distribute_tensor(whole, layout.submesh("ep", "tp"), [Shard(0), *channels])
        setattr(experts, name, nn.Parameter(part))


def average_expert_gradients(parameters: Sequence[nn.Parameter], *, layout: Layout) -> None:
    """An expert has met the tokens of all ranks of `ep`, whose loss is a mean over each one's own: 1 / ep of it.

    FSDP divides by the ranks of `efsdp` alone.
    """
    for parameter in parameters:
        gradient = parameter.grad
        if isinstance(gradient, DTensor) and "ep" in (gradient.device_mesh.mesh_dim_names or ()):
            gradient.to_local().div_(layout.size("ep"))
