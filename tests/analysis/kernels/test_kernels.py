"""Time of kernels by class and relative to peak, or of operators without kernels, computed by hand."""

from dataclasses import replace

import pytest

from tests.analysis.kernels.traced import traced
from tests.timeline.build import Row as Record
from tests.timeline.build import rank, run, step
from tests.timeline.traces import copy, kernel, launch, operator, trace
from traincope.analysis.kernels.kernels import Kernels, kernels
from traincope.analysis.kernels.overlap import Overlap
from traincope.analysis.kernels.time_at_peak import Rated
from traincope.events import Kind, Phase, Work
from traincope.store.side_tables.traces import Trace
from traincope.timeline import Traces, build_timeline


def classes(result: Kernels | None) -> dict[str, tuple[int, int]]:
    """Return class -> (count, ns)."""
    assert result is not None
    return {entry.name: (entry.count, entry.total_ns) for entry in result.classes}


def rated(result: Kernels | None) -> dict[str, Rated]:
    assert result is not None
    return {entry.name: entry.rated for entry in result.classes if entry.rated is not None}


def test_time_by_class_over_all_traces_the_largest_first_and_unknown_last() -> None:
    first = trace(kernel("gemm", 0, 30), kernel("ncclX", 10, 50), copy(60, 65), kernel("mine", 70, 170), rank=0)
    second = trace(kernel("gemm", 0, 20), rank=3)
    result = kernels(traced(first, second))
    assert result is not None
    assert list(classes(result).items()) == [
        *[("gemm", (2, 50)), ("nccl", (1, 40)), ("memory", (1, 5)), ("unknown", (1, 100))],
    ]
    assert (result.source, result.ranks, result.num_traces, result.steps) == ("device", (0, 3), 2, ())
    assert result.unknown_ratio == pytest.approx(100 / 195)
    assert [(entry.name, entry.total_ns) for entry in result.longest] == [
        *[("mine", 100), ("gemm", 50), ("ncclX", 40), ("Memcpy HtoD", 5)],
    ]


def test_a_product_that_communicates_is_fused_and_not_communication() -> None:
    result = kernels(traced(trace(kernel("gemm_reduce_scatter", 0, 8), kernel("add_functor", 2, 4))))
    assert result is not None
    assert [(entry.name, entry.fused_ns) for entry in result.classes] == [("gemm", 8), ("elementwise", 0)]
    assert result.overlap == Overlap(num_beside=0, beside_ns=0, num_compared=0, compared_ns=0, difference_ns=0)


def product(at: int, *, flops: float, dtype: str = "bfloat16", thread: str = "1") -> tuple[object, ...]:
    """Build an operator of 20 ns that launches its kernel after 10 ns."""
    return operator("aten::mm", at, at + 20, flops=flops, dtype=dtype, thread=thread), launch(
        at + 10, at, thread=thread
    )


def test_products_with_recorded_shapes_are_rated_by_the_gpus_peak() -> None:
    """An H100 multiplies bfloat16 at 989.4 TFLOP/s: 989,400 FLOPs per ns. One of three kernels has no operator."""
    rows = [
        *product(100, flops=4 * 989_400),
        *product(200, flops=2 * 989_400),
        *(kernel("gemm", 300, 310, of=100), kernel("gemm", 320, 330, of=200), kernel("gemm", 340, 400, of=7)),
        launch(500, 7),
    ]
    result = kernels(traced(trace(*rows), device="NVIDIA H100 80GB HBM3"))
    assert classes(result) == {"gemm": (3, 80)}
    assert rated(result) == {"gemm": Rated(took_ns=20, ideal_ns=pytest.approx(6.0))}
    assert result is not None
    assert result.classes[0].inefficiency_ns == 14


def test_a_product_of_two_kernels_takes_the_time_of_both() -> None:
    """Split-K: a second kernel adds up what the first one multiplied."""
    rows = [
        *product(100, flops=6 * 989_400),
        launch(112, 101),
        *(kernel("gemm", 300, 310, of=100), kernel("gemm_reduce", 310, 313, of=101)),
    ]
    assert rated(kernels(traced(trace(*rows), device="NVIDIA H100 80GB HBM3"))) == {
        "gemm": Rated(took_ns=13, ideal_ns=pytest.approx(6.0))
    }


def test_a_launch_on_another_thread_is_not_the_product() -> None:
    rows = [
        operator("aten::mm", 100, 120, flops=1e6, dtype="bfloat16"),
        launch(110, 5, thread="2"),
        kernel("gemm", 300, 310, of=5),
    ]
    assert rated(kernels(traced(trace(*rows), device="NVIDIA H100 80GB HBM3"))) == {}


def test_float32_on_tf32_units_is_rated_by_their_peak() -> None:
    """TF32 has 494.7 TFLOP/s, real float32 66.9."""
    rows = [
        *product(100, flops=494_700 * 5, dtype="float32"),
        kernel("cutlass_80_tensorop_s1688gemm", 300, 310, of=100),
    ]
    assert rated(kernels(traced(trace(*rows), device="NVIDIA H100 80GB HBM3"))) == {
        "gemm": Rated(took_ns=10, ideal_ns=pytest.approx(5.0))
    }


def test_without_a_known_peak_nothing_is_rated() -> None:
    rows = [*product(100, flops=1e6), kernel("gemm", 300, 310, of=100)]
    assert rated(kernels(traced(trace(*rows)))) == {}
    assert rated(kernels(traced(trace(*rows), device="Some other GPU"))) == {}


def test_operators_count_by_their_own_time_if_there_are_no_kernels() -> None:
    """linear takes 5 of its 30 ns itself, addmm 19, the copies 6; another thread has its own nesting."""
    rows = [
        operator("aten::linear", 0, 30),
        operator("aten::addmm", 5, 30),
        operator("aten::copy_", 5, 8),
        operator("aten::copy_", 8, 11),
        operator("aten::mul", 10, 20, thread="2"),
    ]
    result = kernels(traced(trace(*rows)))
    assert result is not None
    assert result.source == "host"
    assert classes(result) == {"gemm": (2, 5 + 19), "memory": (2, 6), "elementwise": (1, 10)}
    assert result.overlap is None


def windowed(window: Trace, *records: Record, settings: dict[str, object]) -> Kernels | None:
    """Build a recorded run of one rank with a traced step."""
    recorded = run(rank(0, step(10, 0, 1000), *records))
    recorded = replace(recorded, info=replace(recorded.info, settings=settings))
    return kernels(replace(build_timeline(recorded), traces=Traces(ranks={0: (window,)})))


def counted(work: Work, flops: int) -> Record:
    return Record(
        kind=Kind.FLOPS, start_ns=900, end_ns=900, name="float32", phase=Phase.FORWARD, step=10, tag=work, value=flops
    )


def test_a_traced_step_is_rated_by_the_recorders_counts() -> None:
    """At 2 FLOPs per ns, 100 FLOPs of products take 50 ns, and causal attention of 80, halved, 20 ns."""
    window = trace(operator("aten::mm", 0, 80), operator("aten::_flash_attention", 100, 130), step=10)
    records = [counted(Work.MATMUL, 100), counted(Work.CAUSAL_ATTENTION, 80)]
    result = windowed(window, *records, settings={"peak_flops": 2e9})
    assert result is not None
    assert result.steps == (10,)
    assert rated(result) == {
        "gemm": Rated(took_ns=80, ideal_ns=pytest.approx(50.0)),
        "attention": Rated(took_ns=30, ideal_ns=pytest.approx(20.0)),
    }


def test_a_traced_step_without_counts_or_peak_is_not_rated() -> None:
    window = trace(operator("aten::mm", 0, 80), step=10)
    assert rated(windowed(window, settings={"peak_flops": 2e9})) == {}
    assert rated(windowed(window, counted(Work.MATMUL, 100), settings={})) == {}


def test_a_run_without_traces_has_no_kernels() -> None:
    assert kernels(build_timeline(run(rank(0, step(0, 0, 10))))) is None
