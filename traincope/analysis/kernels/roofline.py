"""Roofline of classes of kernels: FLOP/s and bytes/s of their operators against the peaks of the GPU.

An operator takes at least FLOPs / peak, and at least bytes / bandwidth. The longer time bounds it (Williams, Waterman
and Patterson 2009, "Roofline: an insightful visual performance model"). FLOPs and bytes follow from recorded shapes
(`ingest.traces.shape_flops`, `shape_bytes`). Operators without products do a few FLOPs per element, and each listed GPU
does at least 9 FLOPs in the time that it moves one byte, so memory bounds them, and their FLOPs are not counted.

The time of an operator is that of all its kernels. An operator that multiplies belongs to the class of its work,
another one to the class in which its kernels took longest.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.efficiency.counted_flops import CAUSAL
from traincope.analysis.kernels.kernel_classes import KernelClass
from traincope.analysis.kernels.time_at_peak import CLASS_OF, Peaks
from traincope.arrays import Ints
from traincope.events import Work
from traincope.store.side_tables.traces import Trace
from traincope.timeline.device.products import formats, launching_mover
from traincope.timeline.intervals.painting import ABSENT


class Bound(StrEnum):
    COMPUTE = "compute"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Operators of one class whose bytes, and FLOPs if they multiply, and peaks are known. Sums over traces."""

    operators: int
    took_ns: int
    """Time of their kernels."""
    num_bytes: int
    """Bytes that they move at least."""
    memory_ns: float
    """Time of these bytes at the memory's bandwidth. Data in caches moves faster."""
    product_ns: int
    """Part of `took_ns` in operators that multiply."""
    product_bytes: int
    product_flops: float
    """FLOPs of these. Kernels skip the masked half of causal attention."""
    compute_ns: float
    """Time of these FLOPs at peak."""
    memory_bound_ns: int
    """Part of `took_ns` in operators that memory bounds."""

    @property
    def bytes_per_second(self) -> float:
        return 1e9 * self.num_bytes / self.took_ns

    @property
    def memory_ratio(self) -> float:
        """Share of the memory's bandwidth. More than 1 if caches hold the data."""
        return self.memory_ns / self.took_ns

    @property
    def flops(self) -> float | None:
        """None: no operator multiplies."""
        return self.product_flops if self.product_ns else None

    @property
    def flops_per_second(self) -> float | None:
        """None: no operator multiplies."""
        return 1e9 * self.product_flops / self.product_ns if self.product_ns else None

    @property
    def compute_ratio(self) -> float | None:
        """Share of the peak."""
        return self.compute_ns / self.product_ns if self.product_ns else None

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte of the operators that multiply."""
        return self.product_flops / self.product_bytes if self.product_bytes else None

    @property
    def bound(self) -> Bound:
        """The bound of the operators that took most of the time."""
        return Bound.MEMORY if 2 * self.memory_bound_ns >= self.took_ns else Bound.COMPUTE


def rooflines(
    trace: Trace, rows: Ints, classes: tuple[KernelClass, ...], *, peaks: Peaks, bytes_per_second: float
) -> Mapping[str, Roofline]:
    """Compare the operators that launched the kernels in `rows` with the peaks, by class.

    `classes` are those of the trace's names.
    """
    mover = launching_mover(trace, rows)
    rows, mover = rows[mover != ABSENT], mover[mover != ABSENT]
    operators, operator_at = np.unique(mover, return_inverse=True)
    took_ns = np.zeros(len(operators), dtype=np.int64)
    np.add.at(took_ns, operator_at, trace.duration_ns[rows])
    num_bytes = trace.read_bytes[operators] + trace.written_bytes[operators]
    memory_ns = 1e9 * num_bytes / bytes_per_second
    multiplies = np.isfinite(trace.flops[operators])
    flops = np.where(multiplies, np.where(np.isin(trace.work[operators], CAUSAL), 0.5, 1.0) * trace.flops[operators], 0)
    compute_ns = np.where(multiplies, 1e9 * flops / _peaks(trace, operators, rows, operator_at, peaks), 0)
    named = np.where(
        multiplies,
        np.array([CLASS_OF[Work(work)] for work in trace.work[operators].tolist()], dtype=object),
        _longest_class(trace, rows, operator_at, classes, count=len(operators)),
    )
    known = np.isfinite(compute_ns) & (took_ns > 0)
    result = {}
    for name in dict.fromkeys(named[known].tolist()):
        chosen = known & (named == name)
        products = chosen & multiplies
        result[name] = Roofline(
            operators=int(chosen.sum()),
            took_ns=int(took_ns[chosen].sum()),
            num_bytes=int(num_bytes[chosen].sum()),
            memory_ns=float(memory_ns[chosen].sum()),
            product_ns=int(took_ns[products].sum()),
            product_bytes=int(num_bytes[products].sum()),
            product_flops=float(flops[products].sum()),
            compute_ns=float(compute_ns[products].sum()),
            memory_bound_ns=int(took_ns[chosen & (memory_ns >= compute_ns)].sum()),
        )
    return result


def sum_rooflines(parts: Iterable[Roofline]) -> Roofline:
    """Sum the rooflines of one class in several traces."""
    parts = tuple(parts)
    return Roofline(**{item.name: sum(getattr(part, item.name) for part in parts) for item in fields(Roofline)})


def _peaks(trace: Trace, operators: Ints, rows: Ints, operator_at: Ints, peaks: Peaks) -> NDArray[np.float64]:
    """Peak of each operator's number format; NaN if it is unknown."""
    names = formats(trace, operators, rows, operator_at).tolist()
    return np.array([peaks.get(name, np.nan) for name in names], dtype=np.float64)


def _longest_class(
    trace: Trace, rows: Ints, operator_at: Ints, classes: tuple[KernelClass, ...], *, count: int
) -> NDArray[np.object_]:
    """Name the class in which the kernels of each operator took longest."""
    names = list(dict.fromkeys(entry.name for entry in classes))
    code = np.array([names.index(entry.name) for entry in classes])[trace.name[rows]]
    sums = np.zeros((count, len(names)), dtype=np.int64)
    np.add.at(sums, (operator_at, code), trace.duration_ns[rows])
    named: NDArray[np.object_] = np.array(names, dtype=object)[sums.argmax(axis=1)]
    return named
