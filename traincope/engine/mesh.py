"""Ranks -> one DeviceMesh, and where this rank stands on it."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from traincope.engine.config import AXES, ParallelConfig

BATCH_AXES = ("dp_replicate", "fsdp", "dp")
"""Axes whose ranks see different sequences, outermost first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A mesh that has only the axes with more than one rank; None where there is a single rank."""

    mesh: DeviceMesh | None

    def size(self, axis: str) -> int:
        """Ranks along an axis; 1 for an axis that the mesh does not have."""
        return self.mesh.size(self._axes.index(axis)) if self.mesh is not None and axis in self._axes else 1

    def coordinate(self, axis: str) -> int:
        return self.mesh.get_local_rank(axis) if self.mesh is not None and axis in self._axes else 0

    def group(self, axis: str) -> dist.ProcessGroup | None:
        """This rank's process group along an axis; None for an axis that the mesh does not have."""
        return self.mesh.get_group(axis) if self.mesh is not None and axis in self._axes else None

    def submesh(self, *axes: str) -> DeviceMesh:
        """The mesh of those of `axes` that exist, at least one."""
        if self.mesh is None:
            raise ValueError(f"a single rank has no mesh along {axes}")
        return self.mesh[tuple(axis for axis in axes if axis in self._axes)]

    @property
    def replica(self) -> int:
        """Which slice of every global batch this rank trains on."""
        index = 0
        for axis in BATCH_AXES:
            index = index * self.size(axis) + self.coordinate(axis)
        return index

    @property
    def _axes(self) -> tuple[str, ...]:
        return self.mesh.mesh_dim_names or () if self.mesh is not None else ()


def build_layout(config: ParallelConfig, *, device: torch.device) -> Layout:
    """Stages are outermost: the ranks that talk most, within a replica's shards, are neighbours.

    Raises ConfigError unless the layout fills the process group (one rank without a group).
    """
    config.check_world_size(dist.get_world_size() if dist.is_initialized() else 1)
    sizes = {axis: getattr(config, axis) for axis in AXES if getattr(config, axis) > 1}
    if not sizes:
        return Layout(mesh=None)
    return Layout(mesh=init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes)))
