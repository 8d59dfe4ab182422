"""Slowdown of kernels that overlap communication, which takes memory bandwidth and some of the GPU's cores."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from traincope.arrays import Bools
from traincope.store.traces import Trace
from traincope.timeline.intervals.medians import medians
from traincope.timeline.intervals.union import Union


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Kernels that overlap communication, summed over traces."""

    beside_ns: int
    """Total duration of these kernels."""
    compared_ns: int
    """The part of `beside_ns` in kernels of which the same kernel also ran alone."""
    slowdown_ns: int | None
    """Sum of (duration - median of the same kernel alone) over the compared kernels; None if none is compared."""


def overlap(trace: Trace, *, compute: Bools, communication: Bools) -> Overlap:
    """Compare the kernels of one trace. The same kernel has the same name, grid and block on the same GPU."""
    parts = [_on_device(trace, compute & on_device, communication & on_device) for on_device in _devices(trace)]
    return sum_overlaps(parts)


def sum_overlaps(parts: Iterable[Overlap]) -> Overlap:
    """Sum the overlaps of several traces."""
    parts = tuple(parts)
    known = [part.slowdown_ns for part in parts if part.slowdown_ns is not None]
    return Overlap(
        beside_ns=sum(part.beside_ns for part in parts),
        compared_ns=sum(part.compared_ns for part in parts),
        slowdown_ns=sum(known) if known else None,
    )


def _devices(trace: Trace) -> Iterable[Bools]:
    process = np.array([lane.process for lane in trace.lanes] or [""], dtype=object)[trace.lane]
    return (process == device for device in dict.fromkeys(process.tolist()))


def _on_device(trace: Trace, compute: Bools, communication: Bools) -> Overlap:
    rows = np.flatnonzero(compute)
    sending = Union.of(trace.start_ns[communication], trace.end_ns[communication])
    overlapped = sending.covered_ns(trace.start_ns[rows], trace.end_ns[rows]) > 0
    kind = trace.name[rows].astype(np.int64) * (len(trace.launches) + 1) + trace.launch[rows] + 1
    duration_ns = trace.duration_ns[rows]
    alone, typical_ns = medians(kind[~overlapped], duration_ns[~overlapped])
    at = np.searchsorted(alone, kind[overlapped])
    known = np.append(alone, -1)[at] == kind[overlapped]
    beside_ns = duration_ns[overlapped]
    return Overlap(
        beside_ns=int(beside_ns.sum()),
        compared_ns=int(beside_ns[known].sum()),
        slowdown_ns=int((beside_ns[known] - typical_ns[at[known]]).sum()) if known.any() else None,
    )
