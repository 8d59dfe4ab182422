"""Ideal time of matrix products at the device's peak, and the time of their kernels.

The number of FLOPs comes from the shapes in a trace (`record_shapes=True`), for each operator. Without shapes it comes
from the recorder's counts in a rank's steps, for all products of a traced step together.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from traincope.analysis.efficiency.counted_flops import SKIPPING, CountedFlops
from traincope.analysis.kernels.kernel_classes import ATTENTION, GEMM
from traincope.arrays import Bools
from traincope.events import Work
from traincope.store.side_tables.traces import Trace
from traincope.timeline.device.products import formats, launching_product
from traincope.timeline.intervals.painting import ABSENT

Peaks = Mapping[str, float]
"""dtype -> FLOP/s of a rank."""

CLASS_OF = {
    Work.MATMUL: GEMM,
    Work.ATTENTION: ATTENTION,
    Work.CAUSAL_ATTENTION: ATTENTION,
    Work.ATTENTION_AGAIN: ATTENTION,
    Work.CAUSAL_ATTENTION_AGAIN: ATTENTION,
    Work.CAUSAL_PRODUCTS: GEMM,
    Work.MASKED_ATTENTION: ATTENTION,
    Work.HIDDEN_ATTENTION: ATTENTION,
    Work.BY_MODULE: GEMM,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rated:
    """Time of kernels whose FLOPs are known."""

    took_ns: int
    ideal_ns: float
    """Time at peak."""


def rate_by_shapes(trace: Trace, kernels: Bools, peaks: Peaks, *, kind: str) -> Rated | None:
    """Rate the operators with recorded shapes whose work is of the class `kind`, by those of `kernels` that they
    launched; None without such operators. Kernels skip the masked half of causal attention.
    """
    rows = np.flatnonzero(kernels)
    product = launching_product(trace, rows)
    of_kind = np.isin(trace.work, [work for work, name in CLASS_OF.items() if name == kind])
    chosen = (product != ABSENT) & of_kind[product]
    rows, product = rows[chosen], product[chosen]
    launched, product_at = np.unique(product, return_inverse=True)
    took_ns = np.zeros(len(launched), dtype=np.int64)
    np.add.at(took_ns, product_at, trace.duration_ns[rows])
    peak = np.array([peaks.get(name, np.nan) for name in formats(trace, launched, rows, product_at).tolist()])
    known = np.isfinite(peak)
    if not known.any():
        return None
    run = np.where(np.isin(trace.work[launched], SKIPPING), 0.5, 1.0) * trace.flops[launched]
    ideal_ns = 1e9 * run[known] / peak[known]
    return Rated(took_ns=int(took_ns[known].sum()), ideal_ns=float(ideal_ns.sum()))


def ideal_by_counts(counted: CountedFlops, peaks: Peaks) -> dict[str, float] | None:
    """Compute the ns at peak of one step's products by class; None if the peak of a dtype is unknown."""
    ideal: dict[str, float] = {}
    for (_, work, dtype), flops in counted.flops.items():
        if work in CLASS_OF and flops:
            if dtype not in peaks:
                return None
            half = 0.5 if work in SKIPPING else 1.0
            ideal[CLASS_OF[work]] = ideal.get(CLASS_OF[work], 0.0) + 1e9 * half * flops / peaks[dtype]
    return ideal
