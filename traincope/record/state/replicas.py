"""Names of a model's parameters, and the ranks that hold the same bytes as this one: DDP and DTensors show it.

Ranks along a dim of a DeviceMesh on which a DTensor is replicated hold the same bytes, and so do all ranks of DDP's
group. Nothing else is taken for a replica: where the program only means two tensors to be equal, nothing shows it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Parts that torch.compile, FSDP1 and recomputation put into the names of a model. DDP puts `module` before them."""


@dataclass(slots=True)
class KnownParameters:
    """Parameters of the called modules, by identity."""

    names: dict[int, str] = field(default_factory=dict)
    ddp_ranks: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Ranks of the group over which DDP averages the gradient."""


def known_parameters(roots: Iterable[Any]) -> KnownParameters:
    """Collect the names in `roots`, modules that the training called, and the groups of the DDP modules in them."""
    known = KnownParameters()
    from torch.nn.parallel import DistributedDataParallel

    for root in roots:
        for name, parameter in root.named_parameters():
            known.names.setdefault(id(parameter), without_wrappers(name))
        for module in root.modules():
            if isinstance(module, DistributedDataParallel):
                _add_ddp(known, module)
    return known


def replica_ranks(tensor: Any, *, also: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Ranks that hold the same bytes as this rank's part of a tensor, itself included; empty if nothing shows it.

    `also`: replicas that something besides the tensor shows. With DDP and tensor parallelism these are ranks of two
    axes. The analysis joins what all ranks show.
    """
    return tuple(sorted({*also, *_by_placement(tensor)}))


def _add_ddp(known: KnownParameters, module: Any) -> None:
    import torch.distributed as dist

    ranks = tuple(dist.get_process_group_ranks(module.process_group))
    for name, parameter in module.module.named_parameters():
        if parameter.requires_grad and name not in module.parameters_to_ignore:
            known.ddp_ranks[id(parameter)] = ranks


def _by_placement(tensor: Any) -> tuple[int, ...]:
    placements = getattr(tensor, "placements", None)
    coordinate = None if placements is None else tensor.device_mesh.get_coordinate()
    if placements is None or coordinate is None or any(placement.is_partial() for placement in placements):
        return ()
    along = zip(placements, coordinate, strict=True)
    index = tuple(slice(None) if placement.is_replicate() else at for placement, at in along)
    return tuple(tensor.device_mesh.mesh[index].flatten().tolist())


def without_wrappers(name: str) -> str:
    """Return a qualified name without the parts that wrappers add."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS).removeprefix("module.")
