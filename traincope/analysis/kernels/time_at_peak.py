"""Ideal time of matrix products at the device's peak, and the time of their kernels.

The number of FLOPs comes from the shapes in a trace (`record_shapes=True`), for each operator. Without shapes it comes
from the recorder's counts in a rank's steps, for all products of a traced step together.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.efficiency.counted_flops import CAUSAL, CountedFlops
from traincope.analysis.kernels.kernel_classes import ATTENTION, GEMM
from traincope.arrays import Bools, Ints
from traincope.events import Work
from traincope.store.traces import Trace

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
"""Name of float32's peak on TF32 units."""
AS_TF32 = ("tf32", "s1688")
"""Words in names of kernels that multiply float32 on TF32 units (cuBLAS and CUTLASS: m16n8k8 instructions)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rated:
    """Time of kernels whose FLOPs are known."""

    took_ns: int
    ideal_ns: float
    """Time at peak."""


def rate_by_shapes(trace: Trace, kernels: Bools, peaks: Peaks) -> Rated | None:
    """Rate the products with recorded shapes, by those of `kernels` that they launched; None without such products."""
    rows = np.flatnonzero(kernels & (trace.correlation != 0))
    product = _launching_product(trace, rows)
    rows, product = rows[product >= 0], product[product >= 0]
    launched, product_at = np.unique(product, return_inverse=True)
    took_ns = np.zeros(len(launched), dtype=np.int64)
    np.add.at(took_ns, product_at, trace.duration_ns[rows])
    peak = _peaks(trace, launched, rows, product_at, peaks)
    known = np.isfinite(peak)
    if not known.any():
        return None
    ideal_ns = 1e9 * trace.flops[launched[known]] / peak[known]
    return Rated(took_ns=int(took_ns[known].sum()), ideal_ns=float(ideal_ns.sum()))


def ideal_by_counts(counted: CountedFlops, peaks: Peaks) -> dict[str, float] | None:
    """Compute the ns at peak of one step's products by class; None if the peak of a dtype is unknown."""
    ideal: dict[str, float] = {}
    for (_, work, dtype), flops in counted.flops.items():
        if work in CLASS_OF and flops:
            if dtype not in peaks:
                return None
            half = 0.5 if work in CAUSAL else 1.0
            ideal[CLASS_OF[work]] = ideal.get(CLASS_OF[work], 0.0) + 1e9 * half * flops / peaks[dtype]
    return ideal


def _launching_product(trace: Trace, rows: Ints) -> Ints:
    """Return the row of the product that launched each of these kernels, -1 if no product did.

    A kernel and its launch have the same correlation. The launch lies within the operator, on its thread.
    """
    launches = np.flatnonzero((trace.correlation != 0) & ~trace.of_category("kernel", "gpu_memcpy", "gpu_memset"))
    launches = launches[np.argsort(trace.correlation[launches], kind="stable")]
    at = np.searchsorted(trace.correlation[launches], trace.correlation[rows])
    matched = np.append(trace.correlation[launches], 0)[at] == trace.correlation[rows]
    launch = np.append(launches, 0)[at]
    product = np.full(len(rows), -1, dtype=np.int64)
    products = np.flatnonzero(np.isfinite(trace.flops))
    for lane in np.unique(trace.lane[products]).tolist():
        lane_products = products[trace.lane[products] == lane]
        begun = np.searchsorted(trace.start_ns[lane_products], trace.start_ns[launch], side="right") - 1
        inside = (
            (begun >= 0) & (trace.start_ns[launch] < trace.end_ns[lane_products[begun]]) & (trace.lane[launch] == lane)
        )
        product = np.where(matched & inside, lane_products[begun], product)
    return product


def _peaks(trace: Trace, products: Ints, rows: Ints, product_at: Ints, peaks: Peaks) -> NDArray[np.float64]:
    """Peak FLOP/s of each product, NaN if not known. `product_at` is the position of each kernel's product."""
    dtypes = [*trace.dtypes, TF32]
    named = np.array([any(word in name.lower() for word in AS_TF32) for name in trace.names] or [False])
    on_tf32 = np.zeros(len(products), dtype=bool)
    np.logical_or.at(on_tf32, product_at, named[trace.name[rows]])
    dtype = trace.dtype[products]
    if "float32" in dtypes:
        dtype = np.where(on_tf32 & (dtype == dtypes.index("float32")), len(dtypes) - 1, dtype)
    return np.array([peaks.get(name, np.nan) for name in dtypes])[dtype]
