"""FSDP2: parameters, gradients and optimizer state are sharded over `fsdp`, or `fsdp` x `cp`, unit by unit.

ZeRO's stage 3 gathers a unit's parameters when they are needed, in forward and again in backward, and reduces gradients
with the last microbatch. Stage 2 gathers once per step and keeps parameters until the last backward. It reduces
gradients after each microbatch, so that no rank ever holds all of them. From step to step both keep only shards, where
the paper's stage 2 keeps whole parameters: as many bytes travel, before forward instead of after the update.

With a `dp_replicate` axis the shards are replicated along it (HSDP). With tensor parallelism, replicas (`dp`) are HSDP
with shards of one rank: DDP does not accept DTensors, and torch's workaround replaces parameters at each forward.
"""

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import Shard

from traincope.engine.config import Config
from traincope.engine.model.model import GPT
from traincope.engine.model.moe import Experts
from traincope.engine.parallel.expert_parallel import routers_of, spread_experts
from traincope.engine.precision.formats import FORMATS
from traincope.engine.ranks.mesh import Layout
from traincope.engine.sharing.zeropp import compress


def apply_fsdp(model: GPT, config: Config, *, layout: Layout) -> None:
    """Shard a model on the meta device in place: units of blocks, then the rest. Does nothing without a shard axis.

    In bf16, parameters are gathered in bf16 and gradients reduced as `fsdp.reduce` says. Routers are then units of
    their own and gathered in fp32. The shards themselves, the master weights, are fp32.
    """
    if not layout.sharded:
        return
    compute = FORMATS[config.train.precision].compute
    narrow = compute != torch.float32
    policy = MixedPrecisionPolicy(
        param_dtype=compute if narrow else None, reduce_dtype=FORMATS[config.fsdp.reduce].compute
    )
    mesh = layout.submesh("dp_replicate", layout.replica_axis, layout.shard_axis)
    reshard = config.fsdp.stage == 3 and config.parallel.pp == 1 and layout.size(layout.shard_axis) > 1
    for experts in spread_experts(model, layout=layout):
        fully_shard(
            experts,
            mesh=layout.submesh("dp_replicate", "efsdp"),
            mp_policy=policy,
            offload_policy=_offload(config),
            reshard_after_forward=reshard,
            shard_placement_fn=_shard_hidden(experts),
        )
    for router in routers_of(model) if narrow else ():
        fully_shard(router, mesh=mesh, offload_policy=_offload(config), reshard_after_forward=reshard)
    units = units_of(model, blocks=config.fsdp.unit_blocks)
    for modules in (*units, model):
        fully_shard(
            modules,  # type: ignore[call-overload]  # a module or a list of them
            mesh=mesh,
            mp_policy=policy,
            offload_policy=_offload(config),
            reshard_after_forward=reshard,
        )
    if config.fsdp.prefetch is not None:
        _prefetch([cast(FSDPModule, unit[0]) for unit in units], cast(FSDPModule, model), ahead=config.fsdp.prefetch)
    compress(model, config.fsdp, layout=layout)


def _shard_hidden(experts: Experts) -> Callable[[nn.Parameter], Shard]:
    """Shard along the model's width, because tensor parallelism may have split an expert's own channels."""
    return lambda weight: Shard(2 if weight is experts.down else 1)


def units_of(model: GPT, *, blocks: int) -> list[list[nn.Module]]:
    """Groups of blocks that are gathered together.

    Empty if one group would have all blocks: then the model is the unit.
    """
    modules = list(model.blocks.values())
    if blocks >= len(modules):
        return []
    return [modules[start : start + blocks] for start in range(0, len(modules), blocks)]


def _prefetch(units: Sequence[FSDPModule], model: FSDPModule, *, ahead: int) -> None:
    """Make each unit gather the next `ahead` units before it computes. Embedding and output are gathered first."""
    for number, unit in enumerate(units):
        unit.set_modules_to_forward_prefetch(list(units[number + 1 : number + 1 + ahead]))
        unit.set_modules_to_backward_prefetch(list(reversed(units[max(number - ahead, 0) : number])))
    model.set_modules_to_forward_prefetch(list(units[:ahead]))
    model.set_modules_to_backward_prefetch(list(reversed(units[-ahead:])))


def _offload(config: Config) -> OffloadPolicy:
    """Offload policy of FSDP.

    Pinned memory helps only copies to a GPU, and pages of a file cannot be pinned.
    """
    if config.offload.parameters == "none":
        return OffloadPolicy()
    return CPUOffloadPolicy(pin_memory=config.offload.parameters == "cpu" and torch.cuda.is_available())
