"""FSDP2: parameters, gradients and optimizer state are cut over the `fsdp` axis, or `fsdp` x `cp`, unit by unit.

Stage 3 of ZeRO gathers a unit's parameters when they are needed, in forward and again in backward, and reduces
gradients with the last microbatch. Stage 2 gathers once a step and keeps parameters until that last backward; it
reduces gradients after each microbatch, so that no rank ever holds all of them. Between steps both keep shards only,
where the paper's stage 2 keeps whole parameters: as many bytes travel, before forward instead of after the update.
With a `dp_replicate` axis the shards are replicated along it (HSDP). Replicas (`dp`) of what tensor parallelism cuts
are that too, with shards of one rank: DDP does not take DTensors, and torch's way around it replaces parameters at
every forward.
"""

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import Shard

from traincope.engine.config import Config
from traincope.engine.expert_parallel import routers_of, spread_experts
from traincope.engine.mesh import Layout
from traincope.engine.model import GPT
from traincope.engine.moe import Experts
from traincope.engine.zeropp import compress


def apply_fsdp(model: GPT, config: Config, *, layout: Layout) -> None:
    """Shard a model on the meta device in place: its units of blocks, then what is left; nothing without such an axis.

    In bf16, parameters are gathered in bf16 and gradients reduced in fp32; routers are then units of their own, and
    gathered in fp32.
    """
    if not layout.sharded:
        return
    bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy = bf16 if config.train.precision == "bf16" else MixedPrecisionPolicy()
    mesh = layout.submesh("dp_replicate", layout.replica_axis, layout.shard_axis)
    reshard = config.fsdp.stage == 3 and config.parallel.pp == 1 and layout.size(layout.shard_axis) > 1
    for experts in spread_experts(model, layout=layout):
        fully_shard(
            experts,
            mesh=layout.submesh("dp_replicate", "efsdp"),
            mp_policy=policy,
            offload_policy=_offload(config),
            reshard_after_forward=reshard,
            shard_placement_fn=_over_hidden(experts),
        )
    for router in routers_of(model) if policy is bf16 else ():
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


def _over_hidden(experts: Experts) -> Callable[[nn.Parameter], Shard]:
    """The width of the model: an expert's own channels may be cut already."""
    return lambda weight: Shard(2 if weight is experts.down else 1)


def units_of(model: GPT, *, blocks: int) -> list[list[nn.Module]]:
    """The blocks in groups that are gathered as one; none if one group would be all of them: then the model is it."""
    modules = list(model.blocks.values())
    if blocks >= len(modules):
        return []
    return [modules[start : start + blocks] for start in range(0, len(modules), blocks)]


def _prefetch(units: Sequence[FSDPModule], model: FSDPModule, *, ahead: int) -> None:
    """Each unit begins to gather the next `ahead` ones before it computes; ends and embedding are gathered first."""
    for number, unit in enumerate(units):
        unit.set_modules_to_forward_prefetch(list(units[number + 1 : number + 1 + ahead]))
        unit.set_modules_to_backward_prefetch(list(reversed(units[max(number - ahead, 0) : number])))
    model.set_modules_to_forward_prefetch(list(units[:ahead]))
    model.set_modules_to_backward_prefetch(list(reversed(units[-ahead:])))


def _offload(config: Config) -> OffloadPolicy:
    """Pinned memory is for copies to a GPU, and pages of a file cannot be pinned."""
    if config.offload.parameters == "none":
        return OffloadPolicy()
    return CPUOffloadPolicy(pin_memory=config.offload.parameters == "cpu" and torch.cuda.is_available())
