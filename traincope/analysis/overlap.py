"""What kernels lose while communication runs beside them: it takes their memory bandwidth and some of their cores."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.transfers import medians
from traincope.store.traces import Trace
from traincope.timeline.intervals import Union

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Kernels that ran while communication did, of some traces."""

    beside_ns: int
    """What they took."""
    compared_ns: int
    """Of it, those whose like also ran alone."""
    slowdown_ns: int | None
    """Sum of (duration - median of the same kernel alone), over those; None where none was compared."""


def overlap(trace: Trace, *, compute: Bools, communication: Bools) -> Overlap:
    """Of one trace; the same kernel is one of the same name, grid and block on the same GPU."""
    parts = [_on_device(trace, compute & own, communication & own) for own in _devices(trace)]
    return together(parts)


def together(parts: Iterable[Overlap]) -> Overlap:
    """The sum."""
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
    beside = sending.covered_ns(trace.start_ns[rows], trace.end_ns[rows]) > 0
    kind = trace.name[rows].astype(np.int64) * (len(trace.launches) + 1) + trace.launch[rows] + 1
    duration_ns = trace.duration_ns[rows]
    alone, typical_ns = medians(kind[~beside], duration_ns[~beside])
    at = np.searchsorted(alone, kind[beside])
    known = np.append(alone, -1)[at] == kind[beside]
    beside_ns = duration_ns[beside]
    return Overlap(
        beside_ns=int(beside_ns.sum()),
        compared_ns=int(beside_ns[known].sum()),
        slowdown_ns=int((beside_ns[known] - typical_ns[at[known]]).sum()) if known.any() else None,
    )
