"""Slowdown of kernels during communication, computed by hand."""

from tests.timeline.traces import Row, kernel, trace
from traincope.analysis.kernels.overlap import Overlap, overlap


def overlap_of(*rows: Row) -> Overlap:
    whole = trace(*rows)
    sends = whole.of_category("kernel") & (whole.name == whole.names.index("nccl"))
    return overlap(whole, compute=~sends, communication=sends)


SEND = kernel("nccl", 100, 150, stream="20")


def test_slowdown_is_the_duration_above_the_median_alone() -> None:
    """gemm takes 10, 12 and 30 alone (median 12), and 17 and 20 during nccl; the second overlaps it by only 1 ns."""
    alone = [kernel("gemm", start, start + length) for start, length in ((0, 10), (20, 12), (40, 30))]
    assert overlap_of(*alone, SEND, kernel("gemm", 110, 127), kernel("gemm", 149, 169)) == Overlap(
        beside_ns=37, compared_ns=37, slowdown_ns=5 + 8
    )


def test_another_grid_is_another_kernel() -> None:
    """The smaller kernel overlaps nccl for 40 ns, but never runs alone."""
    rows = [kernel("gemm", 0, 10, launch="large"), kernel("gemm", 105, 145, launch="small"), SEND]
    assert overlap_of(*rows) == Overlap(beside_ns=40, compared_ns=0, slowdown_ns=None)


def test_kernels_of_another_gpu_do_not_overlap() -> None:
    rows = [kernel("gemm", 0, 10), kernel("gemm", 110, 130, gpu="1"), SEND]
    assert overlap_of(*rows) == Overlap(beside_ns=0, compared_ns=0, slowdown_ns=None)


def test_a_faster_kernel_has_a_negative_slowdown() -> None:
    assert overlap_of(kernel("gemm", 0, 10), kernel("gemm", 110, 118), SEND).slowdown_ns == -2
