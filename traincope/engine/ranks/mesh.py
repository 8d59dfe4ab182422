"""The device mesh of the ranks, and this rank's place on it."""

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from traincope.engine.config import AXES, ParallelConfig
from traincope.engine.ranks.torch_private import unfold

BATCH_AXES = ("dp_replicate", "fsdp", "dp")
"""Axes whose ranks see different sequences, outermost first."""

SHARDS_AND_CONTEXT = "fsdp_cp"
"""The axes `fsdp` and `cp` as one axis."""

REPLICAS_AND_CONTEXT = "dp_cp"
"""The axes `dp` and `cp` as one axis."""

SHARD_AXES = ("fsdp", SHARDS_AND_CONTEXT)
"""Axes that parameters may be sharded over; a layout has at most one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A mesh that has only the axes with more than one rank. `mesh` is None for a single rank."""

    mesh: DeviceMesh | None
    folded: DeviceMesh | None = None
    """With a `cp` axis: the same ranks with `cp` and `fsdp`, or `cp` and `dp`, as one axis, `fsdp_cp` or `dp_cp`. It
    has a process group of its own. Parameters and gradients travel there, while keys and values travel along `cp`."""
    experts: DeviceMesh | None = None
    """With spread experts: the same ranks, with those that share shards as the axes `efsdp` and `ep`."""

    def size(self, axis: str) -> int:
        """Number of ranks along an axis; 1 for an axis that the mesh does not have."""
        mesh = self._mesh_with(axis)
        return 1 if mesh is None else mesh[axis].size()

    def coordinate(self, axis: str) -> int:
        mesh = self._mesh_with(axis)
        return 0 if mesh is None else mesh.get_local_rank(axis)

    def group(self, axis: str) -> dist.ProcessGroup | None:
        """This rank's process group along an axis. None for an axis that the mesh does not have."""
        mesh = self._mesh_with(axis)
        return None if mesh is None else mesh.get_group(axis)

    def submesh(self, *axes: str) -> DeviceMesh:
        """Mesh of those of `axes` that exist; at least one must."""
        existing = tuple(axis for axis in axes if self._mesh_with(axis) is not None)
        mesh = self._mesh_with(*existing)
        if mesh is None or not existing:
            raise ValueError(f"no mesh has the axes {axes}")
        return mesh[existing]

    @property
    def shard_axis(self) -> str:
        """Axis that FSDP shards parameters over, if it exists."""
        return SHARDS_AND_CONTEXT if self._mesh_with(SHARDS_AND_CONTEXT) is not None else "fsdp"

    @property
    def replica_axis(self) -> str:
        """Axis along which DDP averages gradients, if it exists."""
        return REPLICAS_AND_CONTEXT if self._mesh_with(REPLICAS_AND_CONTEXT) is not None else "dp"

    @property
    def sharded(self) -> bool:
        """FSDP holds the parameters."""
        return self.group(self.shard_axis) is not None

    @property
    def replica(self) -> int:
        """Slice of each global batch that this rank trains on."""
        index = 0
        for axis in BATCH_AXES:
            index = index * self.size(axis) + self.coordinate(axis)
        return index

    def _mesh_with(self, *axes: str) -> DeviceMesh | None:
        """Mesh that has these axes."""
        meshes = [mesh for mesh in (self.mesh, self.folded, self.experts) if mesh is not None]
        return next((mesh for mesh in meshes if set(axes) <= set(mesh.mesh_dim_names or ())), None)


def build_layout(config: ParallelConfig, *, device: torch.device) -> Layout:
    """Build the layout.

    Stages are outermost, because ranks of a tensor-parallel group communicate most and become neighbours.

    With tensor parallelism, replicas have shards of one rank: see `sharded`. Raises ConfigError unless the layout fills
    the process group (one rank without a group).
    """
    config.check_world_size(dist.get_world_size() if dist.is_initialized() else 1)
    sizes = {axis: size for axis in AXES if (size := getattr(config, axis)) > 1}
    if not sizes:
        return Layout(mesh=None)
    if config.cp == 1:
        mesh = _with_single_rank_shards(_mesh(sizes, device=device), "dp", config)
        return Layout(mesh=mesh, experts=_experts_mesh(mesh, "fsdp", config))
    axis = REPLICAS_AND_CONTEXT if config.dp > 1 else SHARDS_AND_CONTEXT
    within = {name: size for name, size in sizes.items() if name in ("fsdp", "dp", "cp")}
    outer = {name: size for name, size in sizes.items() if name in ("pp", "dp_replicate")}
    inner = {name: size for name, size in sizes.items() if name == "tp"}
    folded = _mesh({**outer, axis: math.prod(within.values()), **inner}, device=device)
    mesh = unfold(folded, axis, sizes=within)
    experts = _experts_mesh(folded, axis, config)
    return Layout(mesh=mesh, folded=_with_single_rank_shards(folded, axis, config), experts=experts)


def _with_single_rank_shards(mesh: DeviceMesh, axis: str, config: ParallelConfig) -> DeviceMesh:
    """Add an `fsdp` axis of one rank to replicas along `axis`, if tensor parallelism splits the model."""
    if config.dp == 1 or config.tp == 1:
        return mesh
    return unfold(mesh, axis, sizes={axis: mesh[axis].size(), "fsdp": 1})


def _experts_mesh(mesh: DeviceMesh, axis: str, config: ParallelConfig) -> DeviceMesh | None:
    """Mesh with `efsdp` and `ep`. `ep` is inside, so tokens travel to neighbours. `efsdp` exists even with one rank."""
    if config.ep == 1:
        return None
    return unfold(mesh, axis, sizes={"efsdp": mesh[axis].size() // config.ep, "ep": config.ep})


def _mesh(sizes: dict[str, int], *, device: torch.device) -> DeviceMesh:
    return init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
