"""The DeviceMeshes of the process: the axis of each group, and this rank's coordinates."""

import functools
import gc
import weakref
from typing import Any

from traincope.record.instrumentation.guard import guard
from traincope.record.instrumentation.patching import Patches
from traincope.record.session.recorder import Recorder


class Meshes:
    """Hook on the creation of DeviceMeshes. Earlier ones are found once, through the garbage collector."""

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
        add = guard(self._add)

        @functools.wraps(original)
        def __init__(mesh: Any, /, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(mesh, *args, **kwargs)
            add(mesh)

        self._patches.replace(DeviceMesh, "__init__", __init__)

    def remove(self) -> None:
        self._patches.restore()
        self._meshes.clear()

    def axis_of(self, group_name: str, size: int) -> str | None:
        """Return the mesh dimension with that group. The newest mesh with such a dimension decides."""
        self._note()
        for mesh in reversed(self._usable()):
            for axis in mesh.mesh_dim_names:
                if mesh[axis].size() == size and mesh.get_group(axis).group_name == group_name:
                    return str(axis)
        return None

    def _add(self, mesh: Any) -> None:
        self._meshes.append(weakref.ref(mesh))

    def _usable(self) -> list[Any]:
        """Return live meshes with named dimensions and process groups that this rank is on."""
        self._meshes = [reference for reference in self._meshes if reference() is not None]
        return [mesh for reference in self._meshes if (mesh := reference()) is not None and _is_usable(mesh)]

    def _note(self) -> None:
        """Record the largest mesh, and this rank's coordinate on it.

        A training may view the same ranks by several meshes: torchtitan has one for weights and one for experts, also
        in a model without experts. The one with most axes decides, then the one with most real groups, or the newest.
        All this is the same on all ranks, whichever axes a rank uses.
        """
        meshes = self._usable()
        if self._recorder is None or not meshes:
            return
        largest = max(reversed(meshes), key=_order)
        names = [str(name) for name in largest.mesh_dim_names]
        coords = dict(zip(names, largest.get_coordinate(), strict=True))
        mesh = dict(zip(names, largest.shape, strict=True))
        if (mesh, coords) != (self._recorder.mesh, self._recorder.coords):
            self._recorder.mesh, self._recorder.coords = mesh, coords
            self._recorder.write_metadata()


def _order(mesh: Any) -> tuple[int, int, int, int]:
    """Sort key of meshes: ranks, axes of more than one rank, those of them with a real group, axes.

    torchtitan gives the axes of an unused mesh groups of the fake backend, which send nothing.
    """
    import torch.distributed as dist

    axes = [name for name, size in zip(mesh.mesh_dim_names, mesh.shape, strict=True) if size > 1]
    real = [name for name in axes if dist.get_backend(mesh.get_group(name)) != "fake"]
    return mesh.size(), len(axes), len(real), len(mesh.mesh_dim_names)


def _is_usable(mesh: Any) -> bool:
    """Return whether a mesh has process groups. Without them, asking for one raises."""
    try:
        if not mesh.mesh_dim_names or mesh.get_coordinate() is None:
            return False
        mesh.get_all_groups()
    except (RuntimeError, AttributeError, AssertionError, LookupError, TypeError, ValueError):
        return False
    return True
