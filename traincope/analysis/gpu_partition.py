"""What a GPU did all through a kernel trace, exactly: compute, exposed communication, exposed memory, idle.

    span = compute + exposed_communication + exposed_memory + idle

Of kernels those are communication that have nccl, rccl or cross_device_reduce in their names, whatever the richer
table of `kernel_classes` says; copies and memsets are memory, all others compute. The window is from the first event of
the GPU to the last one's end. exposed_communication = |U(communication) \\ U(compute)|, exposed_memory = |U(memory) \\
U(compute) \\ U(communication)|.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from traincope.store.traces import KERNEL, MEMORY, Trace
from traincope.timeline import Timeline
from traincope.timeline.intervals import Union

COMMUNICATION = ("nccl", "rccl", "cross_device_reduce")
"""Anywhere in a kernel's name, in any case."""

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPartition:
    """One GPU of one rank, summed over its traces."""

    rank: int
    device: str
    """The GPU's number, as the trace has it."""
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
    def idle_ns(self) -> int:
        return self.span_ns - self.compute_ns - self.exposed_communication_ns - self.exposed_memory_ns


def gpu_partition(timeline: Timeline) -> tuple[GpuPartition, ...]:
    """By rank and GPU; nothing where no trace holds an event of a GPU."""
    parts = [
        part for rank, traces in timeline.traces.ranks.items() for trace in traces for part in partition(rank, trace)
    ]
    keys = dict.fromkeys((part.rank, part.device) for part in parts)
    return tuple(_sum(part for part in parts if (part.rank, part.device) == key) for key in keys)


def partition(rank: int, trace: Trace) -> Iterable[GpuPartition]:
    """One trace, GPU by GPU."""
    kernel, memory = trace.of_category(KERNEL), trace.of_category(*MEMORY)
    named = np.array([any(word in name.lower() for word in COMMUNICATION) for name in trace.names] or [False])
    communication = kernel & named[trace.name]
    process = np.array([lane.process for lane in trace.lanes] or [""], dtype=object)[trace.lane]
    for device in sorted({str(one) for one in process[kernel | memory]}):
        own = process == device
        yield _partition(rank, trace, device, own & kernel & ~communication, own & communication, own & memory)


def _partition(
    rank: int, trace: Trace, device: str, compute: Bools, communication: Bools, memory: Bools
) -> GpuPartition:
    busy = compute | communication | memory
    computing, sending = _length_ns(trace, compute), _length_ns(trace, compute | communication)
    return GpuPartition(
        rank=rank,
        device=device,
        num_traces=1,
        num_compute=int(compute.sum()),
        num_communication=int(communication.sum()),
        num_memory=int(memory.sum()),
        span_ns=int(trace.end_ns[busy].max() - trace.start_ns[busy].min()),
        compute_ns=computing,
        communication_ns=_length_ns(trace, communication),
        exposed_communication_ns=sending - computing,
        exposed_memory_ns=_length_ns(trace, busy) - sending,
    )


def _length_ns(trace: Trace, chosen: Bools) -> int:
    return Union.of(trace.start_ns[chosen], trace.end_ns[chosen]).length_ns


def _sum(parts: Iterable[GpuPartition]) -> GpuPartition:
    first, *others = parts
    named = ("rank", "device")
    sums = {
        one.name: getattr(first, one.name) + sum(getattr(other, one.name) for other in others)
        for one in fields(GpuPartition)
        if one.name not in named
    }
    return GpuPartition(rank=first.rank, device=first.device, **sums)
