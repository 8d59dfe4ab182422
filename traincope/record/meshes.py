"""The DeviceMeshes of the process: which axis a group belongs to, where this rank stands."""

import gc
import weakref
from typing import Any

from traincope.record.guard import guard
from traincope.record.patching import Patches
from traincope.record.recorder import Recorder


class Meshes:
    """Hook on the making of DeviceMeshes; those made before are found once, by the garbage collector."""

    name = "device_mesh"

    def __init__(self) -> None:
        self._patches = Patches()
        self._meshes: list[weakref.ref[Any]] = []
        self._recorder: Recorder | None = None
        self._noted = 0

    def install(self, recorder: Recorder) -> None:
        import torch.distributed as dist
        from torch.distributed.device_mesh import DeviceMesh

        self._recorder = recorder
        if dist.is_initialized():
            self._meshes += [weakref.ref(mesh) for mesh in gc.get_objects() if type(mesh) is DeviceMesh]
        original = DeviceMesh.__init__
        seen = guard(self._seen)

        def __init__(mesh: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(mesh, *args, **kwargs)
            seen(mesh)

        self._patches.replace(DeviceMesh, "__init__", __init__)

    def remove(self) -> None:
        self._patches.restore()
        self._meshes.clear()

    def axis_of(self, group_name: str, size: int) -> str | None:
        """The mesh dimension whose group that is; the newest mesh that names one answers."""
        self._note()
        for mesh in self._alive():
            for axis in mesh.mesh_dim_names or ():
                if mesh[axis].size() == size and mesh.get_group(axis).group_name == group_name:
                    return str(axis)
        return None

    def _seen(self, mesh: Any) -> None:
        self._meshes.append(weakref.ref(mesh))

    def _alive(self) -> list[Any]:
        meshes = [mesh for reference in self._meshes if (mesh := reference()) is not None]
        return [mesh for mesh in meshes if mesh.mesh_dim_names and mesh.get_coordinate() is not None]

    def _note(self) -> None:
        """Write down the largest mesh and this rank's coordinate on it, when a larger one appeared."""
        if self._recorder is None:
            return
        for mesh in self._alive():
            names = [str(name) for name in mesh.mesh_dim_names]
            weight = mesh.size() * 64 + len(names)
            if weight > self._noted:
                self._noted = weight
                self._recorder.mesh = dict(zip(names, mesh.shape, strict=True))
                self._recorder.coords = dict(zip(names, mesh.get_coordinate(), strict=True))
                self._recorder.note()
