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
TF32 = "tf32"
"""The dtype of a peak that float32 may have."""
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
    launched, of = np.unique(product, return_inverse=True)
    took_ns = np.zeros(len(launched), dtype=np.int64)
    np.add.at(took_ns, of, trace.duration_ns[rows])
    peak = _peaks(trace, launched, rows, of, peaks)
    known = np.isfinite(peak)
    if not known.any():
        return None
    ideal_ns = 1e9 * trace.flops[launched[known]] / peak[known]
    return Rated(took_ns=int(took_ns[known].sum()), ideal_ns=float(ideal_ns.sum()))


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


def _peaks(trace: Trace, products: Ints, rows: Ints, of: Ints, peaks: Peaks) -> NDArray[np.float64]:
    """FLOP/s at which each product could have run, NaN where that is not known; `of` says whose each kernel is."""
    dtypes = [*trace.dtypes, TF32]
    named = np.array([any(word in name.lower() for word in AS_TF32) for name in trace.names] or [False])
    on_tf32 = np.zeros(len(products), dtype=bool)
    np.logical_or.at(on_tf32, of, named[trace.name[rows]])
    dtype = trace.dtype[products]
    if "float32" in dtypes:
        dtype = np.where(on_tf32 & (dtype == dtypes.index("float32")), len(dtypes) - 1, dtype)
    return np.array([peaks.get(name, np.nan) for name in dtypes])[dtype]
