"""How long matrix products take at the device's peak, and how long their kernels took.

What was multiplied is known by the shapes that a trace recorded (`record_shapes=True`), operator by operator, or by
what the recorder counted in a rank's steps, then for all products of a traced step together.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.counted import CAUSAL, CountedFlops
from traincope.analysis.kernel_classes import ATTENTION, GEMM
from traincope.events import Work
from traincope.store.traces import Trace
from traincope.timeline.numbering import Ints

Bools = NDArray[np.bool_]
Peaks = Mapping[str, float]
"""dtype -> FLOP/s of a rank."""

CLASS_OF = {
    Work.MATMUL: GEMM,
    Work.ATTENTION: ATTENTION,
    Work.CAUSAL_ATTENTION: ATTENTION,
    Work.ATTENTION_AGAIN: ATTENTION,
    Work.CAUSAL_ATTENTION_AGAIN: ATTENTION,
}
AS_TF32 = ("tf32", "s1688")
"""In the name of a kernel that multiplies float32 on TF32 units (cuBLAS and CUTLASS: m16n8k8 instructions)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rated:
    """Kernels of which it is known what they multiplied."""

    took_ns: int
    ideal_ns: float
    """At peak."""


def by_shapes(trace: Trace, kernels: Bools, peaks: Peaks) -> Rated | None:
    """Products whose shapes were recorded, with those of `kernels` that they launched; None where there is none."""
    rows = np.flatnonzero(kernels & (trace.correlation != 0))
    product = _launching_product(trace, rows)
    rows, product = rows[product >= 0], product[product >= 0]
    took_ns, ideal_ns = 0, 0.0
    for one in np.unique(product).tolist():
        launched = rows[product == one]
        peak = peaks.get(_dtype(trace, one, launched))
        if peak:
            took_ns += int(trace.duration_ns[launched].sum())
            ideal_ns += 1e9 * float(trace.flops[one]) / peak
    return Rated(took_ns=took_ns, ideal_ns=ideal_ns) if took_ns else None


def by_counts(counted: CountedFlops, peaks: Peaks) -> dict[str, float] | None:
    """Class -> ns at peak of what one step multiplies; None where a dtype's peak is not known."""
    ideal: dict[str, float] = {}
    for (_, work, dtype), flops in counted.flops.items():
        if work in CLASS_OF and flops:
            if dtype not in peaks:
                return None
            half = 0.5 if work in CAUSAL else 1.0
            ideal[CLASS_OF[work]] = ideal.get(CLASS_OF[work], 0.0) + 1e9 * half * flops / peaks[dtype]
    return ideal


def _launching_product(trace: Trace, rows: Ints) -> Ints:
    """Row of the product in which each of these kernels was launched, -1 where it was in none.

    A kernel and its launch have the same correlation; the launch lies within the operator, on its thread.
    """
    launches = np.flatnonzero((trace.correlation != 0) & ~trace.of_category("kernel", "gpu_memcpy", "gpu_memset"))
    launches = launches[np.argsort(trace.correlation[launches], kind="stable")]
    at = np.searchsorted(trace.correlation[launches], trace.correlation[rows])
    found = np.append(trace.correlation[launches], 0)[at] == trace.correlation[rows]
    launch = np.append(launches, 0)[at]
    product = np.full(len(rows), -1, dtype=np.int64)
    products = np.flatnonzero(np.isfinite(trace.flops))
    for lane in np.unique(trace.lane[products]).tolist():
        own = products[trace.lane[products] == lane]
        begun = np.searchsorted(trace.start_ns[own], trace.start_ns[launch], side="right") - 1
        inside = (begun >= 0) & (trace.start_ns[launch] < trace.end_ns[own[begun]]) & (trace.lane[launch] == lane)
        product = np.where(found & inside, own[begun], product)
    return product


def _dtype(trace: Trace, product: int, kernels: Ints) -> str:
    dtype = trace.dtypes[trace.dtype[product]]
    names = (trace.names[name].lower() for name in trace.name[kernels].tolist())
    return "tf32" if dtype == "float32" and any(word in name for name in names for word in AS_TF32) else dtype
