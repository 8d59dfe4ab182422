"""Slowdown of kernels during communication, computed by hand."""

from pathlib import Path

from tests.timeline.traces import Row, kernel, launch, operator, trace
from tests.virtual_gpu.actions import Group, Program, Synchronize, collective, forward, step
from tests.virtual_gpu.actions import kernel as virtual_kernel
from tests.virtual_gpu.kineto import write_traces
from traincope.analysis.analyze import analyze
from traincope.analysis.kernels.overlap import Overlap, overlap
from traincope.ingest import import_traces
from traincope.timeline import open_run


def gemm(start: int, end: int, *, launch: str | None = "grid", gpu: str = "0", of: int = 0) -> Row:
    return kernel("gemm", start, end, launch=launch, gpu=gpu, of=of)


def overlap_of(*rows: Row) -> Overlap:
    whole = trace(*rows)
    sends = whole.of_category("kernel") & (whole.name == whole.names.index("nccl"))
    return overlap(whole, compute=~sends, communication=sends)


SEND = kernel("nccl", 100, 150, stream="20")


ALONE = [gemm(start, start + length) for start, length in ((0, 10), (20, 12), (40, 30))]
"""Their median is 12."""


def test_slowdown_is_the_duration_above_the_median_alone() -> None:
    """gemm takes 17, 20 and 11 during nccl; the last one overlaps it by only 1 ns."""
    during = [gemm(100, 117), gemm(120, 140), gemm(149, 160)]
    result = overlap_of(*ALONE, SEND, *during)
    assert result == Overlap(num_beside=3, beside_ns=48, num_compared=3, compared_ns=48, difference_ns=5 + 8 - 1)
    assert result.slowdown_ns == 12


def test_few_kernels_are_no_evidence() -> None:
    """Two are compared. A kernel that ran alone only twice is compared with nothing."""
    during = [gemm(100, 117), gemm(120, 140)]
    assert overlap_of(*ALONE, SEND, *during).slowdown_ns is None
    assert overlap_of(*ALONE[:2], SEND, *during) == Overlap(
        num_beside=2, beside_ns=37, num_compared=0, compared_ns=0, difference_ns=0
    )


def test_another_grid_is_another_kernel() -> None:
    """The smaller kernel overlaps nccl for 40 ns, but never runs alone."""
    alone = [gemm(start, start + 10, launch="large") for start in (0, 20, 40)]
    result = overlap_of(*alone, gemm(105, 145, launch="small"), SEND)
    assert (result.num_beside, result.num_compared, result.slowdown_ns) == (1, 0, None)


def test_another_size_is_another_kernel() -> None:
    """The same kernel alone has unknown bytes; during nccl its operator moves 32 bytes."""
    rows = [*ALONE, SEND, gemm(110, 127, of=1), operator("aten::mul", 60, 70, moved=(16, 16)), launch(65, 1)]
    assert overlap_of(*rows).num_compared == 0


def test_a_name_alone_is_not_enough() -> None:
    """Without grids and bytes, kernels of one name may have any size."""
    rows = [gemm(start, start + 10, launch=None) for start in (0, 20, 40, 100, 115, 130)]
    assert (overlap_of(*rows, SEND).num_beside, overlap_of(*rows, SEND).num_compared) == (3, 0)


def test_kernels_of_another_gpu_do_not_overlap() -> None:
    assert overlap_of(*ALONE, gemm(110, 130, gpu="1"), SEND).num_beside == 0


def test_a_faster_kernel_has_a_negative_slowdown() -> None:
    faster = [gemm(start, start + 10) for start in (100, 115, 130)]
    assert overlap_of(*ALONE, *faster, SEND).slowdown_ns == -6


def test_the_slowdown_of_a_program_is_found(tmp_path: Path) -> None:
    """Three kernels of 10 us run alone; next to a collective of 200 us, the same kernel takes 14 us, four times."""
    alone = [virtual_kernel(10)] * 3
    during = [collective(Group(name="0", ranks=(0,)), 200), *[virtual_kernel(14)] * 4]
    program = Program(ranks=((step(1, forward(*alone, Synchronize(), *during)),),))
    import_traces(write_traces(program, tmp_path / "traces"), tmp_path / "run")
    found = analyze(open_run(tmp_path / "run")).kernels
    assert found is not None
    assert found.overlap is not None
    assert (found.overlap.num_compared, found.overlap.compared_ns, found.overlap.slowdown_ns) == (4, 56_000, 16_000)
