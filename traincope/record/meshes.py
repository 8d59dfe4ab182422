"""The DeviceMeshes of the process: which axis a group belongs to, where this rank stands."""

import functools
import gc
import weakref
from typing import Any

from traincope.record.guard import guard
from traincope.record.patching import Patches
from traincope.record.recorder import Recorder


class Meshes:
    """Hook on the making of DeviceMeshes; those made before are found once, by the garbage collector."""

    name = "device_mesh"
    level = 0

    def __init__(self) -> None:
        self._patches = Patches()
        self._meshes: list[weakref.ref[Any]] = []
        self._recorder: Recorder | None = None

    def install(self, recorder: Recorder) -> None:
        import torch.distributed as dist
        from torch.distributed.device_mesh import DeviceMesh

        self._recorder = recorder
        if dist.is_initialized():
            self._meshes += [weakref.ref(mesh) for mesh in gc.get_objects() if type(mesh) is DeviceMesh]
        original = DeviceMesh.__init__
        seen = guard(self._seen)

        @functools.wraps(original)
        def __init__(mesh: Any, /, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(mesh, *args, **kwargs)
            seen(mesh)

        self._patches.replace(DeviceMesh, "__init__", __init__)

    def remove(self) -> None:
        self._patches.restore()
        self._meshes.clear()

    def axis_of(self, group_name: str, size: int) -> str | None:
        """The mesh dimension whose group that is; the newest mesh that names one answers."""
        self._note()
        for mesh in reversed(self._usable()):
            for axis in mesh.mesh_dim_names:
                if mesh[axis].size() == size and mesh.get_group(axis).group_name == group_name:
                    return str(axis)
        return None

    def _seen(self, mesh: Any) -> None:
        self._meshes.append(weakref.ref(mesh))

    def _usable(self) -> list[Any]:
        """Live meshes with named dimensions that this rank is on and that have process groups."""
        self._meshes = [reference for reference in self._meshes if reference() is not None]
        return [mesh for reference in self._meshes if (mesh := reference()) is not None and _is_usable(mesh)]

    def _note(self) -> None:
        """Write down the largest mesh, the newest of equals, and this rank's coordinate on it."""
        meshes = self._usable()
        if self._recorder is None or not meshes:
            return
        largest = max(reversed(meshes), key=lambda mesh: (mesh.size(), len(mesh.mesh_dim_names)))
        names = [str(name) for name in largest.mesh_dim_names]
        coords = dict(zip(names, largest.get_coordinate(), strict=True))
        mesh = dict(zip(names, largest.shape, strict=True))
        if (mesh, coords) != (self._recorder.mesh, self._recorder.coords):
            self._recorder.mesh, self._recorder.coords = mesh, coords
            self._recorder.note()


def _is_usable(mesh: Any) -> bool:
    """A mesh may have been made without process groups; asking it for one then raises."""
    try:
        if not mesh.mesh_dim_names or mesh.get_coordinate() is None:
            return False
        mesh.get_all_groups()
    except (RuntimeError, AttributeError, AssertionError, LookupError, TypeError, ValueError):
        return False
    return True
