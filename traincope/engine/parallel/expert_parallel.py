"""Expert parallelism: the experts of each layer are spread over the `ep` axis, and tokens travel to them and back.

`ep` is a part of the ranks that FSDP shards over. Other parameters are sharded over all of these ranks, an expert over
the ranks of `efsdp`, which have the same experts. With tensor parallelism the parts of experts are spread.
"""

import functools
from collections.abc import Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from traincope.engine.config import Config
from traincope.engine.model.expert_load import LoadCounter
from traincope.engine.model.model import GPT, Block
from traincope.engine.model.moe import Experts, MixtureOfExperts
from traincope.engine.model.router import Router
from traincope.engine.parallel.context_parallel import cp_positions
from traincope.engine.parallel.dispatch import run_remote_experts
from traincope.engine.parallel.expert_tensor_parallel import send_shares
from traincope.engine.parallel.sequence_capacity import assign_across_ranks
from traincope.engine.ranks.mesh import Layout


def apply_expert_parallel(model: GPT, config: Config, *, layout: Layout) -> None:
    """Configure each layer's router, and keep on each rank of `ep` its experts.

    Changes a model on the meta device in place.
    """
    pieces = config.train.accumulation * config.parallel.microbatches
    for mixture in _mixtures(model):
        mixture.router.loss_share /= pieces
        _share_sequences(mixture, config, group=layout.group("cp"))
        group = layout.group("ep")
        if group is None:
            continue
        _cut(mixture.experts, layout=layout)
        mixture.run_experts = functools.partial(run_remote_experts, group=group)
        if layout.group("tp") is not None:
            cut = config.parallel.sequence_parallel
            send_shares(mixture, group=group, mesh=layout.submesh("tp"), sequence_parallel=cut)


def spread_experts(model: GPT, *, layout: Layout) -> list[Experts]:
    """Experts of each layer that `ep` spreads.

    Empty without an `ep` axis, where experts are parameters like all others.
    """
    return [mixture.experts for mixture in _mixtures(model)] if layout.group("ep") is not None else []


def routers_of(model: GPT) -> list[Router]:
    return [mixture.router for mixture in _mixtures(model)]


def load_counters(modules: Iterable[nn.Module]) -> dict[int, LoadCounter]:
    """Layer -> the load counter of its experts, for all layers in a rank's stages, wrapped or not."""
    models = [model for module in modules for model in module.modules() if isinstance(model, GPT)]
    blocks = {int(layer): block for model in models for layer, block in model.blocks.items()}
    return {
        layer: block.feed_forward.load
        for layer, block in blocks.items()
        if isinstance(block, Block) and isinstance(block.feed_forward, MixtureOfExperts)
    }


def scale_balance_losses(modules: Iterable[nn.Module], scaled: Callable[[Tensor], Tensor]) -> None:
    """Scale the balance losses of all routers as `scaled` scales the loss of the tokens."""
    for router in (each for module in modules for each in module.modules() if isinstance(each, Router)):
        router.scaled = scaled


def _mixtures(model: GPT) -> list[MixtureOfExperts]:
    return [module for module in model.modules() if isinstance(module, MixtureOfExperts)]


def _share_sequences(mixture: MixtureOfExperts, config: Config, *, group: dist.ProcessGroup | None) -> None:
    """Make the balance loss and the capacity count whole sequences.

    `group` has the rest of the sequences; None: they are whole here.
    """
    mixture.router.sequence_group = group
    capacity = mixture.config.capacity(config.model.sequence)
    if group is not None and capacity is not None:
        mixture.assign = functools.partial(
            assign_across_ranks,
            experts=mixture.config.number,
            capacity=capacity,
            positions=[cp_positions(config, rank=rank) for rank in range(config.parallel.cp)],
            group=group,
        )


def _cut(experts: Experts, *, layout: Layout) -> None:
    for name, weight in list(experts.named_parameters()):
        channels = weight.placements if isinstance(weight, DTensor) else ()
        whole = torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)
        part = distribute_tensor(whole, layout.submesh("ep", "tp"), [Shard(0), *channels])
        setattr(experts, name, nn.Parameter(part))


def average_expert_gradients(parameters: Sequence[nn.Parameter], *, layout: Layout) -> None:
    """Divide gradients of spread experts by the ranks of `ep`.

    An expert has seen the tokens of all ranks of `ep`, and the loss is a mean over each rank's tokens. FSDP divides by
    the ranks of `efsdp` only.
    """
    for parameter in parameters:
        gradient = parameter.grad
        if isinstance(gradient, DTensor) and "ep" in (gradient.device_mesh.mesh_dim_names or ()):
            gradient.to_local().div_(layout.size("ep"))
