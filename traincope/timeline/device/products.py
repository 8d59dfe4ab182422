"""Operators with known FLOPs or bytes that launched kernels, and the number format in which these multiplied."""

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Bools, Ints
from traincope.events import Phase, Work
from traincope.store.side_tables.traces import KERNEL, MEMORY, UNKNOWN, Trace
from traincope.timeline.device.steps import DeviceSteps
from traincope.timeline.device.works import Works
from traincope.timeline.intervals.painting import ABSENT

TF32 = "tf32"
"""Name of float32's format on TF32 units."""
AS_TF32 = ("tf32", "s1688")
"""Words in names of kernels that multiply float32 on TF32 units (cuBLAS and CUTLASS: m16n8k8 instructions)."""
AGAIN = {
    Work.ATTENTION_AGAIN: Work.ATTENTION,
    Work.CAUSAL_ATTENTION_AGAIN: Work.CAUSAL_ATTENTION,
}
"""Work of a fused backward of attention -> work of the products that are not computed again."""
AGAIN_SHARE = 1 / 5
"""Share of that backward's products that forward computed already (`ingest.traces.shape_flops`)."""


def launching_product(trace: Trace, rows: Ints) -> Ints:
    """Return the row of the operator with FLOPs that launched each of these kernels; ABSENT without one."""
    return launching(trace, rows, np.flatnonzero(np.isfinite(trace.flops)))


def launching_mover(trace: Trace, rows: Ints) -> Ints:
    """Return the row of the operator with known bytes that launched each of these kernels; ABSENT without one."""
    return launching(trace, rows, np.flatnonzero(trace.read_bytes != UNKNOWN))


def launching(trace: Trace, rows: Ints, operators: Ints) -> Ints:
    """Return which of these operators launched each of these kernels; ABSENT without one. No operator lies in another.

    A kernel and its launch have the same correlation. The launch lies within the operator, on its thread.
    """
    launches = np.flatnonzero((trace.correlation != 0) & ~trace.of_category(KERNEL, *MEMORY))
    launches = launches[np.argsort(trace.correlation[launches], kind="stable")]
    at = np.searchsorted(trace.correlation[launches], trace.correlation[rows])
    matched = np.append(trace.correlation[launches], 0)[at] == trace.correlation[rows]
    matched &= trace.correlation[rows] != 0
    launch = np.append(launches, 0)[at]
    operator = np.full(len(rows), ABSENT, dtype=np.int64)
    for lane in np.unique(trace.lane[operators]).tolist():
        of_lane = operators[trace.lane[operators] == lane]
        begun = np.searchsorted(trace.start_ns[of_lane], trace.start_ns[launch], side="right") - 1
        inside = (begun >= 0) & (trace.start_ns[launch] < trace.end_ns[of_lane[begun]]) & (trace.lane[launch] == lane)
        operator = np.where(matched & inside, of_lane[begun], operator)
    return operator


def formats(trace: Trace, products: Ints, rows: Ints, product_at: Ints) -> NDArray[np.object_]:
    """Name the number format of each product: its dtype, or TF32 by the names of its kernels.

    `product_at` is the position of the product of each kernel in `rows`.
    """
    names = np.array([*trace.dtypes, TF32], dtype=object)
    on_tf32 = np.zeros(len(products), dtype=bool)
    np.logical_or.at(on_tf32, product_at, _on_tf32(trace)[trace.name[rows]])
    return np.where(on_tf32 & (names[trace.dtype[products]] == "float32"), TF32, names[trace.dtype[products]])


def _on_tf32(trace: Trace) -> Bools:
    return np.array([any(word in name.lower() for word in AS_TF32) for name in trace.names] or [False])


def flops_by_step(
    trace: Trace, works: Works, steps: DeviceSteps, *, phase: Ints
) -> dict[tuple[Phase, Work, str], Ints]:
    """FLOPs of each step by phase, kind of work and number format; evaluation is excluded. `phase`: of each work.

    A product belongs to the step in which its first kernel begins. Products that launched no kernel did not run on this
    GPU, for example those that a CUDA graph only captured.
    """
    kernels = np.flatnonzero(works.compute)
    product = launching_product(trace, works.row[kernels])
    kernels, product = kernels[product != ABSENT], product[product != ABSENT]
    operators, first, product_at = np.unique(product, return_index=True, return_inverse=True)
    named, format_at = np.unique(formats(trace, operators, works.row[kernels], product_at), return_inverse=True)
    phase, step = phase[kernels[first]], steps.at(works.start_ns[kernels[first]])
    kept = (step >= 0) & (phase != Phase.EVALUATION)
    keys = np.stack([phase, trace.work[operators], format_at.reshape(-1)])[:, kept]
    unique, key_at = np.unique(keys, axis=1, return_inverse=True)
    sums: dict[tuple[Phase, Work, str], Ints] = {}
    for number, (of_phase, work, name) in enumerate(unique.T.tolist()):
        of_key = key_at.reshape(-1) == number
        flops = np.zeros(len(steps.number))
        np.add.at(flops, step[kept][of_key], trace.flops[operators][kept][of_key])
        for part, share in _parts(Work(work)):
            key = Phase(of_phase), part, str(named[name])
            sums[key] = sums.get(key, 0) + np.rint(share * flops).astype(np.int64)
    return sums


def _parts(work: Work) -> tuple[tuple[Work, float], ...]:
    """Kinds of work of an operator, with their shares of its FLOPs."""
    return ((AGAIN[work], 1 - AGAIN_SHARE), (work, AGAIN_SHARE)) if work in AGAIN else ((work, 1.0),)
