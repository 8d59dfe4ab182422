"""What kernels lose beside communication: durations on paper."""

from tests.timeline.traces import Row, kernel, trace
from traincope.analysis.overlap import Overlap, overlap


def found(*rows: Row) -> Overlap:
    whole = trace(*rows)
    sends = whole.of_category("kernel") & (whole.name == whole.names.index("nccl"))
    return overlap(whole, compute=~sends, communication=sends)


SEND = kernel("nccl", 100, 150, stream="20")


def test_longer_than_the_median_alone_is_lost() -> None:
    """Alone gemm takes 10, 12 and 30, in the median 12; beside nccl 17 and 20, the second by 1 ns only."""
    alone = [kernel("gemm", start, start + length) for start, length in ((0, 10), (20, 12), (40, 30))]
    assert found(*alone, SEND, kernel("gemm", 110, 127), kernel("gemm", 149, 169)) == Overlap(
        beside_ns=37, compared_ns=37, slowdown_ns=5 + 8
    )


def test_another_grid_is_another_kernel() -> None:
    """The smaller one's 40 ns are beside, but it never ran alone."""
    rows = [kernel("gemm", 0, 10, launch="large"), kernel("gemm", 105, 145, launch="small"), SEND]
    assert found(*rows) == Overlap(beside_ns=40, compared_ns=0, slowdown_ns=None)


def test_another_gpu_of_the_process_is_not_beside() -> None:
    rows = [kernel("gemm", 0, 10), kernel("gemm", 110, 130, gpu="1"), SEND]
    assert found(*rows) == Overlap(beside_ns=0, compared_ns=0, slowdown_ns=None)


def test_faster_beside_counts_against_it() -> None:
    assert found(kernel("gemm", 0, 10), kernel("gemm", 110, 118), SEND).slowdown_ns == -2
