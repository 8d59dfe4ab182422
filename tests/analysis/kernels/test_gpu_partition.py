"""Partition of a GPU's time, computed by hand and compared with a label for every ns."""

from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.kernels.traced import traced
from tests.timeline.traces import Row, copy, kernel, operator, trace
from traincope.analysis import GpuPartition, analyze
from traincope.analysis.kernels.gpu_partition import gpu_partition

COMPUTE, SEND = "gemm", "ncclDevKernel_AllReduce_Sum_f32"


def test_time_that_overlaps_compute_is_not_exposed() -> None:
    """
    compute  ####....######..........
    nccl     ..######....####........
    copy     ..........######..####..
    """
    rows = [
        kernel(COMPUTE, 0, 4),
        kernel(COMPUTE, 8, 14),
        kernel(SEND, 2, 8, stream="20"),
        kernel(SEND, 12, 16, stream="20"),
        copy(10, 16),
        copy(18, 22),
    ]
    assert gpu_partition(traced(trace(*rows))) == (
        GpuPartition(
            rank=0,
            device="0",
            num_traces=1,
            num_compute=2,
            num_communication=2,
            num_memory=2,
            span_ns=22,
            compute_ns=10,
            communication_ns=10,
            exposed_communication_ns=4 + 2,
            exposed_memory_ns=4,
        ),
    )


def test_idle_is_the_rest_of_the_span() -> None:
    (result,) = gpu_partition(traced(trace(kernel(COMPUTE, 100, 110), kernel(COMPUTE, 150, 155))))
    assert (result.span_ns, result.idle_ns) == (55, 40)


def test_every_kernel_of_the_communication_classes_is_communication() -> None:
    names = ["ncclKernel_x", "RCCL_y", "void deep_ep::internode::dispatch<8>(int*)", "my_all_reduce", "gemm_rs", "add"]
    rows = [kernel(name, 10 * at, 10 * at + 5) for at, name in enumerate(names)]
    (result,) = gpu_partition(traced(trace(*rows)))
    assert (result.num_communication, result.num_compute) == (4, 2)


def test_traces_of_a_rank_are_summed_by_gpu() -> None:
    first = trace(kernel(COMPUTE, 0, 10), kernel(COMPUTE, 0, 3, gpu="1"), rank=1)
    second = trace(kernel(COMPUTE, 1000, 1007), rank=1)
    result = gpu_partition(traced(first, second))
    assert [(entry.rank, entry.device, entry.num_traces, entry.span_ns) for entry in result] == [
        (1, "0", 2, 17),
        (1, "1", 1, 3),
    ]


def test_a_trace_of_a_host_has_no_partition() -> None:
    assert gpu_partition(traced(trace(operator("aten::mm", 0, 5)))) == ()


ROWS = st.lists(
    st.builds(
        lambda kind, start, length, stream: (
            copy(start, start + length) if kind == "copy" else kernel(kind, start, start + length, stream=str(stream))
        ),
        st.sampled_from([COMPUTE, SEND, "copy"]),
        st.integers(0, 60),
        st.integers(0, 15),
        st.integers(7, 8),
    ),
    min_size=1,
    max_size=12,
)


@given(ROWS)
def test_the_parts_equal_the_labels_of_every_ns(rows: list[Row]) -> None:
    labels = {
        at: {kind for row in rows if row.start_ns <= at < row.end_ns for kind in [row.name]}
        for at in range(min(row.start_ns for row in rows), max(row.end_ns for row in rows))
    }
    (result,) = gpu_partition(traced(trace(*rows)))
    compute = sum(COMPUTE in kinds for kinds in labels.values())
    exposed = sum(SEND in kinds and COMPUTE not in kinds for kinds in labels.values())
    memory = sum(kinds == {"Memcpy HtoD"} for kinds in labels.values())
    assert (result.compute_ns, result.exposed_communication_ns, result.exposed_memory_ns) == (compute, exposed, memory)
    assert result.communication_ns == sum(SEND in kinds for kinds in labels.values())
    assert result.idle_ns == sum(not kinds for kinds in labels.values())


def test_the_verdict_of_imported_traces_names_the_gpus_losses() -> None:
    """40 and 60 of two ranks' 100 ns are idle, and 20 of the first rank's are exposed communication."""
    first = trace(kernel(COMPUTE, 0, 30), kernel(SEND, 30, 50), kernel(COMPUTE, 90, 100), rank=0)
    second = trace(kernel(COMPUTE, 0, 30), kernel(COMPUTE, 90, 100), rank=1)
    idle, exposed = analyze(traced(first, second)).verdict
    assert (idle.kind, idle.ranks) == ("gpu_idle", (0, 1))
    assert idle.evidence == "the GPUs of the traces are idle for 50.0 % of the traced time, that of rank 1 60.0 %"
    assert (exposed.kind, exposed.evidence) == (
        "exposed_communication",
        "the GPUs of the traces communicate (transfers or waits) and do not compute for 10.0 % of the traced time, "
        "that of rank 0 20.0 %",
    )


def test_gpus_that_compute_all_the_time_are_healthy() -> None:
    (result,) = analyze(traced(trace(kernel(COMPUTE, 0, 98), kernel(SEND, 98, 100)))).verdict
    assert (result.kind, result.evidence) == ("healthy", "the GPUs of the traces compute for 98.0 % of the traced time")


def test_traces_without_a_gpu_say_how_to_get_one() -> None:
    (result,) = analyze(traced(trace(operator("aten::mm", 0, 5)))).verdict
    assert (result.kind, result.advice) == (
        "no_steps",
        "Call the profiler's step() after each step, and trace again; if the training uses GPUs, with "
        "ProfilerActivity.CUDA.",
    )
