"""Ranks -> one DeviceMesh, and where this rank stands on it."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from traincope.engine.config import AXES, ParallelConfig
from traincope.engine.torch_private import unfold

BATCH_AXES = ("dp_replicate", "fsdp", "dp")
"""Axes whose ranks see different sequences, outermost first."""

SHARDS_AND_CONTEXT = "fsdp_cp"
"""The axes `fsdp` and `cp` as one."""

SHARD_AXES = ("fsdp", SHARDS_AND_CONTEXT)
"""Either of which may be the axis that parameters are sharded over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A mesh that has only the axes with more than one rank; None where there is a single rank."""

    mesh: DeviceMesh | None
    folded: DeviceMesh | None = None
    """With a `cp` axis: the same ranks with `fsdp` and `cp` as one axis, `fsdp_cp`, in a group of its own. Parameters
    travel there, while keys and values travel along `cp`."""
    experts: DeviceMesh | None = None
    """With experts spread over ranks: the same ranks with those that share shards as `efsdp` and `ep`."""

    def size(self, axis: str) -> int:
        """Ranks along an axis; 1 for an axis that the mesh does not have."""
        mesh = self._with(axis)
        return 1 if mesh is None else mesh[axis].size()

    def coordinate(self, axis: str) -> int:
        mesh = self._with(axis)
        return 0 if mesh is None else mesh.get_local_rank(axis)

    def group(self, axis: str) -> dist.ProcessGroup | None:
        """This rank's process group along an axis; None for an axis that the mesh does not have."""
        mesh = self._with(axis)
        return None if mesh is None else mesh.get_group(axis)

    def submesh(self, *axes: str) -> DeviceMesh:
        """The mesh of those of `axes` that exist, at least one."""
        mesh = self._with(axes[-1])
        if mesh is None:
            raise ValueError(f"there is no mesh along {axes}")
        return mesh[tuple(axis for axis in axes if axis in (mesh.mesh_dim_names or ()))]

    @property
    def shard_axis(self) -> str:
        """The axis that FSDP shards parameters over, if there is one."""
        return "fsdp" if self.folded is None else SHARDS_AND_CONTEXT

    @property
    def sharded(self) -> bool:
        """Whether FSDP has the parameters."""
        return self.group(self.shard_axis) is not None

    @property
    def replica(self) -> int:
        """Which slice of every global batch this rank trains on."""
        index = 0
        for axis in BATCH_AXES:
            index = index * self.size(axis) + self.coordinate(axis)
        return index

    def _with(self, axis: str) -> DeviceMesh | None:
        """The mesh that has an axis."""
        meshes = [mesh for mesh in (self.mesh, self.folded, self.experts) if mesh is not None]
        return next((mesh for mesh in meshes if axis in (mesh.mesh_dim_names or ())), None)


def build_layout(config: ParallelConfig, *, device: torch.device) -> Layout:
    """Stages are outermost: the ranks that talk most, those of a tensor-parallel group, are neighbours.

    Replicas of what tensor parallelism cuts have shards of one rank: see `sharded`.

    Raises ConfigError unless the layout fills the process group (one rank without a group).
    """
    config.check_world_size(dist.get_world_size() if dist.is_initialized() else 1)
    sizes = {axis: size for axis in AXES if (size := getattr(config, axis)) > 1}
    if not sizes:
        return Layout(mesh=None)
    if config.cp == 1:
        mesh = _mesh(sizes, device=device)
        if config.dp > 1 and config.tp > 1:
            mesh = unfold(mesh, "dp", sizes={"dp": config.dp, "fsdp": 1})
        return Layout(mesh=mesh, experts=_experts_mesh(mesh, "fsdp", config))
    within = {axis: size for axis, size in sizes.items() if axis in ("fsdp", "cp")}
    outer = {axis: size for axis, size in sizes.items() if axis in ("pp", "dp_replicate")}
    inner = {axis: size for axis, size in sizes.items() if axis == "tp"}
    folded = _mesh({**outer, SHARDS_AND_CONTEXT: config.fsdp * config.cp, **inner}, device=device)
    mesh = unfold(folded, SHARDS_AND_CONTEXT, sizes=within)
    return Layout(mesh=mesh, folded=folded, experts=_experts_mesh(folded, SHARDS_AND_CONTEXT, config))


def _experts_mesh(mesh: DeviceMesh, axis: str, config: ParallelConfig) -> DeviceMesh | None:
    """`ep` is the inner axis: tokens travel between neighbours. `efsdp` is there even with one rank."""
    if config.ep == 1:
        return None
    return unfold(mesh, axis, sizes={"efsdp": mesh[axis].size() // config.ep, "ep": config.ep})


def _mesh(sizes: dict[str, int], *, device: torch.device) -> DeviceMesh:
    return init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
