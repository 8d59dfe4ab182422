"""Sweeps of collectives over sizes, on every axis of the mesh that has several ranks."""

from collections import defaultdict
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from traincope.engine.ranks.mesh import Layout
from traincope.engine.ranks.renamed import gather_into, scatter_sum_into
from traincope.preflight.measurements import SweepTime
from traincope.preflight.measuring.timing import repetition_seconds
from traincope.preflight.pairing import Pair, pair
from traincope.topology import axis_order

BYTES_ON_CPU, BYTES_ON_GPU = (4 << 10, 128 << 10, 1 << 20), (64 << 10, 4 << 20, 64 << 20, 256 << 20)
REPETITIONS = 5
ELEMENT_BYTES = 4


def axis_groups(layout: Layout) -> dict[str, dist.ProcessGroup]:
    """Axis -> this rank's group, of all axes with several ranks, on any of the layout's meshes."""
    groups = {}
    for axis in _axes(layout):
        group = layout.group(axis)
        if group is not None and dist.get_world_size(group) > 1:
            groups[axis] = group
    return groups


def neighbours(group: dist.ProcessGroup) -> Iterator[Pair]:
    """Pairs of ranks that are next to each other on the ring of a group."""
    ranks = dist.get_process_group_ranks(group)
    for at, rank in enumerate(ranks):
        yield pair(rank, ranks[(at + 1) % len(ranks)])


def measure_collectives(
    groups: dict[str, dist.ProcessGroup], *, rank: int, device: torch.device, repeats: int
) -> tuple[SweepTime, ...]:
    """Times of this rank's groups; only the first rank of a group returns them."""
    sizes = BYTES_ON_CPU if device.type == "cpu" else BYTES_ON_GPU
    seconds: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for _ in range(repeats):
        for axis, group in groups.items():
            for operation, make in OPERATIONS.items():
                for num_bytes in sizes:
                    call, counted = make(num_bytes, group, device)
                    seconds[axis, operation, counted].append(_slowest_member(call, group, device))
    members = {axis: tuple(dist.get_process_group_ranks(group)) for axis, group in groups.items()}
    return tuple(
        SweepTime(axis=axis, operation=operation, ranks=members[axis], num_bytes=num_bytes, seconds=tuple(values))
        for (axis, operation, num_bytes), values in seconds.items()
        if members[axis][0] == rank
    )


def _slowest_member(call: Callable[[], object], group: dist.ProcessGroup, device: torch.device) -> float:
    call()
    dist.barrier(group)
    own = repetition_seconds(call, device=device, repetitions=REPETITIONS)
    slowest = torch.tensor(own, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
    return slowest.item()


Made = tuple[Callable[[], object], int]
"""A call, and its bytes as nccl-tests count them."""


def _buffers(num_bytes: int, group: dist.ProcessGroup, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """A whole buffer of about `num_bytes`, and one rank's part of it."""
    part = max(num_bytes // ELEMENT_BYTES // dist.get_world_size(group), 1)
    whole = torch.zeros(part * dist.get_world_size(group), device=device)
    return whole, torch.zeros(part, device=device)


def _all_reduce(num_bytes: int, group: dist.ProcessGroup, device: torch.device) -> Made:
    whole, _ = _buffers(num_bytes, group, device)
    return lambda: dist.all_reduce(whole, group=group), whole.nbytes


def _all_gather(num_bytes: int, group: dist.ProcessGroup, device: torch.device) -> Made:
    whole, part = _buffers(num_bytes, group, device)
    return lambda: gather_into(whole, part, group=group), whole.nbytes


def _reduce_scatter(num_bytes: int, group: dist.ProcessGroup, device: torch.device) -> Made:
    whole, part = _buffers(num_bytes, group, device)
    return lambda: scatter_sum_into(part, whole, group=group), whole.nbytes


def _all_to_all(num_bytes: int, group: dist.ProcessGroup, device: torch.device) -> Made:
    whole, _ = _buffers(num_bytes, group, device)
    target = torch.zeros_like(whole)
    return lambda: dist.all_to_all_single(target, whole, group=group), whole.nbytes


OPERATIONS: dict[str, Callable[[int, dist.ProcessGroup, torch.device], Made]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
}


def _axes(layout: Layout) -> list[str]:
    meshes: list[DeviceMesh] = [mesh for mesh in (layout.mesh, layout.folded, layout.experts) if mesh is not None]
    return sorted({axis for mesh in meshes for axis in mesh.mesh_dim_names or ()}, key=axis_order)
