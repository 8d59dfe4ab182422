"""Slowdown of kernels that overlap communication, which takes memory bandwidth and some of the GPU's cores.

The same kernel has the same name, grid and block on the same GPU, and an operator that moves the same number of bytes.
One of the two may be unknown: ROCm's traces have no grids, and bytes need recorded shapes. A name alone is not enough.
The time of a kernel alone is the median of at least 3.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np

from traincope.arrays import Bools, Ints
from traincope.store.side_tables.traces import UNKNOWN, Trace
from traincope.timeline.device.products import launching_mover
from traincope.timeline.intervals.medians import medians
from traincope.timeline.intervals.numbering import Numbering
from traincope.timeline.intervals.painting import ABSENT
from traincope.timeline.intervals.union import Union

MIN_ALONE = 3
"""Number of kernels alone that a comparison needs."""
MIN_COMPARED = 3
"""Compared kernels, below which the slowdown is not evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Kernels that overlap communication, summed over traces."""

    num_beside: int
    beside_ns: int
    """Total duration of these kernels."""
    num_compared: int
    """Kernels of which the same one also ran alone, at least 3 times."""
    compared_ns: int
    """Their part of `beside_ns`."""
    difference_ns: int
    """Sum of (duration - median of the same kernel alone) over the compared kernels."""

    @property
    def slowdown_ns(self) -> int | None:
        """The difference; None if fewer than 3 kernels are compared."""
        return self.difference_ns if self.num_compared >= MIN_COMPARED else None


def overlap(trace: Trace, *, compute: Bools, communication: Bools) -> Overlap:
    """Compare the kernels of one trace."""
    parts = [_on_device(trace, compute & on_device, communication & on_device) for on_device in _devices(trace)]
    return sum_overlaps(parts)


def sum_overlaps(parts: Iterable[Overlap]) -> Overlap:
    """Sum the overlaps of several traces."""
    parts = tuple(parts)
    return Overlap(**{item.name: sum(getattr(part, item.name) for part in parts) for item in fields(Overlap)})


def _devices(trace: Trace) -> Iterable[Bools]:
    process = np.array([lane.process for lane in trace.lanes] or [""], dtype=object)[trace.lane]
    return (process == device for device in dict.fromkeys(process.tolist()))


def _on_device(trace: Trace, compute: Bools, communication: Bools) -> Overlap:
    rows = np.flatnonzero(compute)
    sending = Union.of(trace.start_ns[communication], trace.end_ns[communication])
    overlapped = sending.covered_ns(trace.start_ns[rows], trace.end_ns[rows]) > 0
    kind, duration_ns = _kind(trace, rows), trace.duration_ns[rows]
    free = ~overlapped & (kind != UNKNOWN)
    alone, typical_ns = medians(kind[free], duration_ns[free])
    enough = np.bincount(np.searchsorted(alone, kind[free]), minlength=len(alone)) >= MIN_ALONE
    alone, typical_ns = alone[enough], typical_ns[enough]
    at = np.searchsorted(alone, kind[overlapped])
    known = np.append(alone, UNKNOWN - 1)[at] == kind[overlapped]
    beside_ns = duration_ns[overlapped]
    return Overlap(
        num_beside=int(overlapped.sum()),
        beside_ns=int(beside_ns.sum()),
        num_compared=int(known.sum()),
        compared_ns=int(beside_ns[known].sum()),
        difference_ns=int((beside_ns[known] - typical_ns[at[known]]).sum()),
    )


def _kind(trace: Trace, rows: Ints) -> Ints:
    """Number the kernels so that the same kernel has the same number; UNKNOWN if only its name is known."""
    mover = launching_mover(trace, rows)
    moved = np.where(mover == ABSENT, UNKNOWN, np.append(trace.read_bytes + trace.written_bytes, UNKNOWN)[mover])
    sizes = Numbering.of(moved)
    launched = trace.name[rows].astype(np.int64) * (len(trace.launches) + 1) + trace.launch[rows] + 1
    named_only = (trace.launch[rows] == UNKNOWN) & (moved == UNKNOWN)
    return np.where(named_only, UNKNOWN, launched * len(sizes) + sizes.number(moved))
