"""The sections on kernel traces, line by line; and prices of the terms."""

import io
from dataclasses import replace
from itertools import pairwise

import pytest
from rich.console import Console

from tests.analysis.kernels.traced import traced
from tests.report.example import MS, analysis
from tests.timeline.traces import copy, kernel, launch, operator, trace
from traincope.analysis import Analysis, Contention, RankWait, Stragglers, analyze
from traincope.analysis.context import Context
from traincope.report.document.document import to_document
from traincope.report.text.text import render
from traincope.timeline import Traces


def shown(result: Analysis, *, price: float | None = None) -> list[str]:
    console = Console(file=io.StringIO(), width=80)
    render(result, console, price_per_gpu_hour=price)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def section(lines: list[str], head: str) -> list[str]:
    first = next(number for number, line in enumerate(lines) if line.startswith(head))
    return lines[first : lines.index("", first)]


def imported() -> Analysis:
    """100 ms of an H100: products 60, of which 10 at a fifth of its peak; nccl 50, of which 30 during products.

    The first product moves 13.408 GB, which takes 4 ms. The others take 6, 5 and 5 ms alone, and 12, 12 and 10 during
    nccl. They are launched at 9 ms, the first one 1 ms before its start.
    """
    ends = [10 * MS, 20 * MS, 26 * MS, 31 * MS, 36 * MS, 48 * MS, 60 * MS, 70 * MS]
    flops, moved = 2 * MS * 989_400.0, (10_000_000_000, 3_408_000_000)
    rows = [
        operator("aten::mm", 9 * MS, 9 * MS + 2, flops=flops, dtype="bfloat16", moved=moved),
        *(launch(9 * MS + number, number) for number in range(1, 8)),
        *(kernel("gemm<1>(int)", *span, launch="1", of=at) for at, span in enumerate(pairwise(ends), start=1)),
        kernel("void ncclDevKernel_AllReduce", 40 * MS, 90 * MS, stream="20"),
        copy(100 * MS, 110 * MS),
    ]
    return analyze(traced(trace(*rows), device="NVIDIA H100 80GB HBM3"))


def test_an_import_has_a_report_of_kernel_traces_only() -> None:
    assert shown(imported()) == [
        "hand-made",
        "kernel traces of 1 of 1 rank, imported",
        "",
        "VERDICT",
        " 1. exposed communication  rank 0, all steps; confidence unknown",
        "    the GPUs of the traces communicate (transfers or waits) and do not compute",
        "    for 20.0 % of the traced time",
        "    do: Trace whole steps of all ranks (profiler.step(), torch 2.4 or newer) and",
        "    import them together: only then are transfers and waits for other ranks",
        "    apart.",
        " 2. gpu idle  rank 0, all steps; confidence medium",
        "    the GPUs of the traces are idle for 10.0 % of the traced time",
        "    do: Remove synchronisations (.item(), print), launch fewer and larger",
        "    kernels (torch.compile, CUDA graphs, larger batches), and give the",
        "    DataLoader more workers.",
        " 3. exposed memory  rank 0, all steps; confidence medium",
        "    the GPUs of the traces copy and do not compute for 10.0 % of the traced time",
        "    do: Copy from pinned memory on a separate stream, earlier and less.",
        "    meaning, remedy, check: traincope explain exposed_communication gpu_idle",
        "    exposed_memory",
        "",
        "GPUS AND KERNELS  1 trace of rank 0",
        "    each GPU from its first event to its last; comm and memory: without compute",
        "    rank  gpu      ms  compute    comm  memory    idle  comm hidden",
        "    0       0  100.00   60.0 %  20.0 %  10.0 %  10.0 %       30.0 %",
        "    class   count     ms   share   rated  of peak",
        "    gemm        7  60.00  50.0 %  16.7 %   20.0 %",
        "    nccl        1  50.00  41.7 %       -        -",
        "    memory      1  10.00   8.3 %       -        -",
        "    roofline     ms     FLOP/s  of peak  GB/s  of peak  FLOP/byte  bound by",
        "    gemm      10.00  198 TFLOP   20.0 %  1341   40.0 %      147.6  memory",
        "    during communication, kernels ran 19.0 ms (126.7 %) longer than alone; 3",
        "    kernels compared, 100.0 % of their time",
        "    1.6 launched works wait for the compute stream on average in the traces,",
        "    none for 50.0 % of the time",
        "    longest, ms: gemm 60.00; ncclDevKernel_AllReduce 50.00; Memcpy HtoD 10.00",
        "",
        "RECORDING",
        "    kernel traces were imported that give no steps, so the ledger is unknown",
    ]


def test_the_document_holds_the_same_in_integers() -> None:
    result = to_document(imported())
    assert result["gpu_partition"] == [
        {
            "rank": 0,
            "device": "0",
            "traces": 1,
            "gpu_events": {"compute": 7, "communication": 1, "memory": 1},
            "span_ns": 100 * MS,
            "compute_ns": 60 * MS,
            "communication_ns": 50 * MS,
            "exposed_communication_ns": 20 * MS,
            "exposed_memory_ns": 10 * MS,
            "idle_ns": 10 * MS,
        }
    ]
    assert result["kernels"] is not None
    assert result["kernels"]["classes"][0] == {
        "kind": "gemm",
        "family": "compute",
        "count": 7,
        "total_ns": 60 * MS,
        "share_ratio": 0.5,
        "fused_ns": 0,
        "rated_ns": 10 * MS,
        "ideal_ns": 2.0 * MS,
        "inefficiency_ns": 8 * MS,
        "inefficiency_rank_hours": pytest.approx(8e-3 / 3600),
        "inefficiency_money": None,
        "roofline": {
            "operators": 1,
            "took_ns": 10 * MS,
            "bytes": 13_408_000_000,
            "bytes_per_second": pytest.approx(1.3408e12),
            "memory_ratio": pytest.approx(0.4),
            "product_ns": 10 * MS,
            "flops": 2 * MS * 989_400.0,
            "flops_per_second": pytest.approx(197.88e12),
            "compute_ratio": pytest.approx(0.2),
            "flops_per_byte": pytest.approx(147.583, abs=1e-3),
            "memory_bound_ns": 10 * MS,
            "bound": "memory",
        },
        "roofline_reason": None,
    }
    waiting = [(queue["stream"], queue["works"], queue["mean"]) for queue in result["kernels"]["queues"]]
    assert waiting == [("7", 7, 1.61), ("20", 2, None)]
    kept = ("source", "ranks", "steps", "traces", "unknown_ratio", "compared_ns", "overlap_slowdown_ns")
    assert [result["kernels"][key] for key in kept] == [  # type: ignore[literal-required]
        *("device", [0], [], 1, 0.0, 34 * MS, 19 * MS),
    ]
    assert result["run"]["imported"]


def test_time_below_peak_is_priced_in_rank_hours_and_money() -> None:
    """8 ms of an hour, and 19 ms that are lost next to communication, at 3,600 a second."""
    assert section(shown(imported(), price=3600 * 3600), "GPUS")[4:] == [
        "    class   count     ms   share   rated  of peak  rank-hours below peak    USD",
        "    gemm        7  60.00  50.0 %  16.7 %   20.0 %                2.2e-06  28.80",
        "    nccl        1  50.00  41.7 %       -        -                      -      -",
        "    memory      1  10.00   8.3 %       -        -                      -      -",
        *(line for line in section(shown(imported()), "GPUS") if "roofline" in line or "147.6" in line),
        "    during communication, kernels ran 19.0 ms (126.7 %, 5.3e-06 rank-hours,",
        "    68.40 USD) longer than alone; 3 kernels compared, 100.0 % of their time",
        *section(shown(imported()), "GPUS")[-3:],
    ]


def test_a_trace_without_kernels_is_reported_by_operators() -> None:
    window = trace(operator("aten::mm", 0, 3 * MS), operator("unheard_of", 4 * MS, 5 * MS), step=2)
    timeline = replace(analysis().timeline, traces=Traces(ranks={1: (window,)}))
    lines = section(shown(replace(analysis(), kernels=analyze(timeline).kernels)), "OPERATORS")
    assert lines == [
        "OPERATORS  step 2 of rank 1; time of operators on the host; no kernel was traced",
        "    class    count    ms   share  rated  of peak",
        "    gemm         1  3.00  75.0 %      -        -",
        "    unknown      1  1.00  25.0 %      -        -",
        "    25.0 % of the time is unclassified (kernel name table 4)",
        "    longest, ms: aten::mm 3.00; unheard_of 1.00",
    ]


def test_unreadable_traces_are_problems_of_the_recording() -> None:
    timeline = replace(analysis().timeline, traces=Traces(problems=("x.json is no trace",)))
    result = replace(analysis(), context=Context(timeline))
    assert to_document(result)["recorder"]["problems"] == ["x.json is no trace"]
    assert "    x.json is no trace" in shown(result)


def test_large_contention_between_axes_is_printed() -> None:
    """pp sends for 18 ms in 6 rank-steps, 6 ms of it during fsdp; fsdp's 6 ms are not compared."""
    send, gather = analysis().comm
    contention = Contention(axis="fsdp", count=8, compared=6, extra_ns=6 * MS)
    rows = (
        replace(send, contention=(contention,)),
        replace(gather, contention=(Contention(axis="pp", count=3, compared=0, extra_ns=None),)),
    )
    result = replace(analysis(), comm=rows)
    assert section(shown(result), "COMMUNICATION")[-1] == (
        "    pp send: contention with fsdp adds 1.00 ms per step (6 of 8 compared)"
    )
    assert [row["contention"] for row in to_document(result)["comm"] or []] == [
        [{"axis": "fsdp", "count": 8, "compared": 6, "extra_ns": 6 * MS}],
        [{"axis": "pp", "count": 3, "compared": 0, "extra_ns": None}],
    ]


def test_with_a_price_every_term_has_its_rank_hours_and_money() -> None:
    """600 ms of ranks are 1/6000 h: at 36,000 an hour 6.00 for a step's worth of all."""
    lines = section(shown(analysis(), price=36_000), "WHERE THE TIME WENT")
    assert lines[:2] == [
        "WHERE THE TIME WENT  mean step 100 ms over 2 ranks and 3 steps; rank-hours of",
        "all, at 36,000.00 USD an hour",
    ]
    assert lines[2].split()[:9] == ["forward", "27.5", "%", "27.50", "ms", "4.6e-05", "h", "1.65", "USD"]
    (step,) = [line.split() for line in lines if line.strip().startswith("step")]
    assert step == ["step", "100.0", "%", "100.00", "ms", "0.00017", "h", "6.00", "USD"]
    ledger = to_document(analysis(), price_per_gpu_hour=36_000)["ledger"]
    assert ledger is not None
    assert ledger["cost"]["money"] is not None
    assert ledger["cost"]["money"]["forward"] == 36_000 * 165 * MS / 3_600_000_000_000
    assert ledger["cost"]["money"]["launch_gap"] is None


def test_a_price_adds_money_to_losses_and_gains() -> None:
    """An hour at 60,000 is 1 for 60 ms: stage 0 waits as long for its schedule; of 600 ms a finding saves 8.9 %."""
    lines = shown(analysis(), price=60_000)
    assert section(lines, "LOSSES BY CAUSE") == [
        "LOSSES BY CAUSE  over all ranks; causes overlap",
        "    cause                                in  rank-hours   USD",
        "    bubble.schedule: stage 0          steps     1.7e-05  1.00",
        "    bubble.schedule: stage 1          steps     1.7e-05  1.00",
        "    straggler wait caused by: rank 1  steps     4.2e-06  0.25",
        "    bubble.imbalance: stage 0         steps     3.3e-06  0.20",
        "    bubble.imbalance: stage 1         steps     3.3e-06  0.20",
    ]
    assert lines[4:6] == [
        " 1. pipeline bubble  all ranks, all steps; confidence high; saves 8.9 % (1.5e-05",
        "    rank-hours, 0.89 USD)",
    ]
    in_euros = io.StringIO()
    render(analysis(), Console(file=in_euros, width=80), price_per_gpu_hour=60_000, currency="EUR")
    assert in_euros.getvalue().splitlines() == [line.replace("USD", "EUR") for line in lines]
    (finding,) = to_document(analysis(), price_per_gpu_hour=60_000)["verdict"]
    assert finding["estimated_gain_money"] == pytest.approx(0.89)


def test_only_the_largest_causes_are_shown() -> None:
    waits = tuple(
        RankWait(rank=rank, compute_ns=0, own_ns=0, own_wait_ns=0, straggler_wait_ns=(1 + rank) * 6 * MS)
        for rank in range(20)
    )
    result = replace(analysis(), bubble=None, stragglers=Stragglers(ranks=waits, named=()))
    lines = section(shown(result, price=60_000), "LOSSES BY CAUSE")
    assert lines[0] == "LOSSES BY CAUSE  over all ranks; causes overlap; the 12 largest of 20"
    assert [line.split()[5] for line in lines[2:]] == [str(rank) for rank in range(19, 7, -1)]


def test_small_runs_without_a_price_show_no_rank_hours() -> None:
    lines = shown(analysis())
    assert not any(" h " in line for line in section(lines, "WHERE THE TIME WENT"))
    assert not any("LOSSES BY CAUSE" in line or "rank-hours" in line for line in lines)
