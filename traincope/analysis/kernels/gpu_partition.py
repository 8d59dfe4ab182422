"""Partition of a GPU's time in a kernel trace: compute, exposed communication, exposed memory, idle.

    span = compute + exposed_communication + exposed_memory + idle

Communication kernels are known by their names (`timeline.device.communication_kernels`). Copies and memsets are memory;
all others are compute. The span is from the GPU's first event to the end of its last one. exposed_communication =
|U(communication) \\ U(compute)|, exposed_memory = |U(memory) \\ U(compute) \\ U(communication)|.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np

from traincope.arrays import Bools
from traincope.store.side_tables.traces import KERNEL, MEMORY, Trace
from traincope.timeline import Timeline
from traincope.timeline.device.works import is_communication
from traincope.timeline.intervals.union import Union


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEvents:
    """Number of events of a GPU."""

    compute: int
    communication: int
    memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPartition:
    """Time of one GPU of one rank, summed over its traces: compute + exposed communication + exposed memory + idle."""

    rank: int
    device: str
    """The GPU's number in the trace."""
    num_traces: int
    num_compute: int
    num_communication: int
    num_memory: int
    span_ns: int
    compute_ns: int
    communication_ns: int
    exposed_communication_ns: int
    exposed_memory_ns: int

    @property
    def gpu_events(self) -> GpuEvents:
        return GpuEvents(compute=self.num_compute, communication=self.num_communication, memory=self.num_memory)

    @property
    def idle_ns(self) -> int:
        return self.span_ns - self.compute_ns - self.exposed_communication_ns - self.exposed_memory_ns


def gpu_partition(timeline: Timeline) -> tuple[GpuPartition, ...]:
    """Partition the time of every GPU in the traces, by rank and GPU. Empty without events of a GPU."""
    parts = [
        part for rank, traces in timeline.traces.ranks.items() for trace in traces for part in partition(rank, trace)
    ]
    keys = dict.fromkeys((part.rank, part.device) for part in parts)
    return tuple(_sum(part for part in parts if (part.rank, part.device) == key) for key in keys)


def partition(rank: int, trace: Trace) -> Iterable[GpuPartition]:
    """Yield the partition of each GPU in one trace."""
    rows = np.flatnonzero(trace.of_category(KERNEL, *MEMORY))
    memory, communication = trace.of_category(*MEMORY)[rows], is_communication(trace)[rows]
    starts_ns, lanes = trace.start_ns[rows], trace.lane[rows]
    ends_ns = starts_ns + trace.duration_ns[rows]

    def length_ns(chosen: Bools) -> int:
        return Union.of(starts_ns[chosen], ends_ns[chosen]).length_ns

    for device in sorted({trace.lanes[lane].process for lane in set(lanes.tolist())}):
        on_device = np.array([lane.process == device for lane in trace.lanes])[lanes]
        sending, moving = on_device & communication, on_device & memory
        computing = on_device & ~communication & ~memory
        compute_ns, without_memory_ns = length_ns(computing), length_ns(computing | sending)
        yield GpuPartition(
            rank=rank,
            device=device,
            num_traces=1,
            num_compute=int(computing.sum()),
            num_communication=int(sending.sum()),
            num_memory=int(moving.sum()),
            span_ns=int(ends_ns[on_device].max() - starts_ns[on_device].min()),
            compute_ns=compute_ns,
            communication_ns=length_ns(sending),
            exposed_communication_ns=without_memory_ns - compute_ns,
            exposed_memory_ns=length_ns(on_device) - without_memory_ns,
        )


def _sum(parts: Iterable[GpuPartition]) -> GpuPartition:
    first, *others = parts
    named = ("rank", "device")
    sums = {
        item.name: getattr(first, item.name) + sum(getattr(other, item.name) for other in others)
        for item in fields(GpuPartition)
        if item.name not in named
    }
    return GpuPartition(rank=first.rank, device=first.device, **sums)
