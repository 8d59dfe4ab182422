"""The sections on kernel traces, line by line; and prices beside the terms."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from tests.analysis.traced import traced
from tests.report.example import MS, analysis
from tests.timeline.traces import copy, kernel, launch, operator, trace
from traincope.analysis import Analysis, Contention, RankWait, Stragglers, analyze
from traincope.report import render, to_document
from traincope.timeline import Traces


def shown(found: Analysis, *, price: float | None = None) -> list[str]:
    console = Console(file=io.StringIO(), width=80)
    render(found, console, price_per_gpu_hour=price)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def section(lines: list[str], head: str) -> list[str]:
    first = next(number for number, line in enumerate(lines) if line.startswith(head))
    return lines[first : lines.index("", first)]


def imported() -> Analysis:
    """Of 100 ms of an H100: products 60, of which 10 at a fifth of its peak; nccl 30, of which 10 beside products."""
    flops = 2 * MS * 989_400.0
    rows = [
        operator("aten::mm", 0, 2 * MS, flops=flops, dtype="bfloat16"),
        launch(MS, 5),
        kernel("gemm<1>(int)", 10 * MS, 20 * MS, of=5),
        kernel("gemm<1>(int)", 20 * MS, 60 * MS),
        kernel("gemm<1>(int)", 60 * MS, 70 * MS),
        kernel("void ncclDevKernel_AllReduce", 60 * MS, 90 * MS, stream="20"),
        copy(100 * MS, 110 * MS),
    ]
    return analyze(traced(trace(*rows), device="NVIDIA H100 80GB HBM3"))


def test_imported_traces_are_a_report_of_their_own() -> None:
    assert shown(imported()) == [
        "hand-made",
        "kernel traces of 1 of 1 rank, imported",
        "",
        "VERDICT",
        " 1. exposed communication  rank 0, all steps; confidence medium",
        "    the GPUs of the traces communicate and do not compute for 20.0 % of the",
        "    traced time",
        "    do: overlap it (prefetch the next layer, larger buckets), send fewer bytes,",
        "    or use a faster link",
        " 2. gpu idle  rank 0, all steps; confidence medium",
        "    the GPUs of the traces run nothing for 10.0 % of the traced time",
        "    do: the host does not keep up or waits: look for synchronisations (.item(),",
        "    print), small kernels (torch.compile, CUDA graphs, larger batches) and the",
        "    data loader",
        " 3. exposed memory  rank 0, all steps; confidence medium",
        "    the GPUs of the traces copy and do not compute for 10.0 % of the traced time",
        "    do: copy from pinned memory on a stream of its own, earlier; copy less",
        "",
        "GPU  from its first event to its last; comm and memory without compute",
        "    rank  gpu      ms  compute    comm  memory    idle  comm hidden",
        "    0       0  100.00   60.0 %  20.0 %  10.0 %  10.0 %       10.0 %",
        "",
        "KERNELS  1 trace of rank 0",
        "    class   count     ms   share   rated  of peak",
        "    gemm        3  60.00  60.0 %  16.7 %   20.0 %",
        "    nccl        1  30.00  30.0 %       -        -",
        "    memory      1  10.00  10.0 %       -        -",
        "    beside communication kernels ran -15.0 ms (-60.0 %) longer than the same",
        "    ones alone; of their time 100.0 % is compared",
        "    longest, ms: gemm 60.00; ncclDevKernel_AllReduce 30.00; Memcpy HtoD 10.00",
        "",
        "RECORDING",
        "    kernel traces alone: nothing is known of steps, waits, or how far the ranks'",
        "    clocks are apart",
    ]


def test_the_document_holds_the_same_in_integers() -> None:
    found = to_document(imported())
    assert found["gpu_partition"] == [
        {
            "rank": 0,
            "device": "0",
            "traces": 1,
            "gpu_events": {"compute": 3, "communication": 1, "memory": 1},
            "span_ns": 100 * MS,
            "compute_ns": 60 * MS,
            "communication_ns": 30 * MS,
            "exposed_communication_ns": 20 * MS,
            "exposed_memory_ns": 10 * MS,
            "idle_ns": 10 * MS,
        }
    ]
    assert found["kernels"] is not None
    assert found["kernels"]["classes"][0] == {
        "kind": "gemm",
        "family": "compute",
        "count": 3,
        "total_ns": 60 * MS,
        "share_ratio": 0.6,
        "fused_ns": 0,
        "rated_ns": 10 * MS,
        "ideal_ns": 2.0 * MS,
        "inefficiency_ns": 8 * MS,
        "inefficiency_rank_hours": pytest.approx(8e-3 / 3600),
        "inefficiency_money": None,
    }
    kept = ("source", "ranks", "steps", "traces", "unknown_ratio", "compared_ns", "overlap_slowdown_ns")
    assert [found["kernels"][key] for key in kept] == [  # type: ignore[literal-required]
        *("device", [0], [], 1, 0.0, 10 * MS, -15 * MS),
    ]
    assert found["run"]["imported"]


def test_what_lies_below_peak_is_told_in_rank_hours_and_money_where_there_is_a_price() -> None:
    """8 ms of an hour, and 15 ms that were gained, at 3,600 a second."""
    assert section(shown(imported(), price=3600 * 3600), "KERNELS") == [
        "KERNELS  1 trace of rank 0",
        "    class   count     ms   share   rated  of peak  rank-hours below it  price",
        "    gemm        3  60.00  60.0 %  16.7 %   20.0 %              2.2e-06  28.80",
        "    nccl        1  30.00  30.0 %       -        -                    -      -",
        "    memory      1  10.00  10.0 %       -        -                    -      -",
        "    beside communication kernels ran -15.0 ms (-60.0 %, -4.2e-06 rank-hours,",
        "    -54.00) longer than the same ones alone; of their time 100.0 % is compared",
        "    longest, ms: gemm 60.00; ncclDevKernel_AllReduce 30.00; Memcpy HtoD 10.00",
    ]


def test_operators_stand_in_a_recorded_run_where_no_kernel_was_traced() -> None:
    window = trace(operator("aten::mm", 0, 3 * MS), operator("unheard_of", 4 * MS, 5 * MS), step=2)
    timeline = replace(analysis().timeline, traces=Traces(ranks={1: (window,)}))
    lines = section(shown(replace(analysis(), kernels=analyze(timeline).kernels)), "OPERATORS")
    assert lines == [
        "OPERATORS  step 2 of rank 1; their own time on the host, no kernel was traced",
        "    class    count    ms   share  rated  of peak",
        "    gemm         1  3.00  75.0 %      -        -",
        "    unknown      1  1.00  25.0 %      -        -",
        "    25.0 % of the time is in no class of table 1 of names",
        "    longest, ms: aten::mm 3.00; unheard_of 1.00",
    ]


def test_what_could_not_be_read_of_traces_is_said() -> None:
    timeline = replace(analysis().timeline, traces=Traces(problems=("x.json is no trace",)))
    found = replace(analysis(), timeline=timeline)
    assert to_document(found)["recorder"]["problems"] == ["x.json is no trace"]
    assert "    x.json is no trace" in shown(found)


def test_an_axis_that_costs_another_is_named_where_it_costs_much() -> None:
    """Of the 18 ms that pp sends in 6 steps of ranks, 6 ms beside fsdp; of fsdp's 6 ms, nothing."""
    send, gather = analysis().comm
    beside = Contention(axis="fsdp", count=8, compared=6, extra_ns=6 * MS)
    rows = (
        replace(send, contention=(beside,)),
        replace(gather, contention=(Contention(axis="pp", count=3, compared=0, extra_ns=None),)),
    )
    found = replace(analysis(), comm=rows)
    assert section(shown(found), "COMMUNICATION")[-1] == (
        "    pp send: 6 of 8 that began beside fsdp take 1.00 ms more than alone"
    )
    assert [one["contention"] for one in to_document(found)["comm"] or []] == [
        [{"axis": "fsdp", "count": 8, "compared": 6, "extra_ns": 6 * MS}],
        [{"axis": "pp", "count": 3, "compared": 0, "extra_ns": None}],
    ]


def test_with_a_price_every_term_has_its_rank_hours_and_money() -> None:
    """600 ms of ranks are 1/6000 h: at 36,000 an hour 6.00 for a step's worth of all."""
    lines = section(shown(analysis(), price=36_000), "WHERE THE TIME WENT")
    assert lines[:2] == [
        "WHERE THE TIME WENT  a step is 100 ms, mean over 2 ranks and 3 steps; rank-hours",
        "of all, at 36,000.00 an hour",
    ]
    assert lines[2].split()[:8] == ["forward", "27.5", "%", "27.50", "ms", "4.6e-05", "h", "1.65"]
    (step,) = [line.split() for line in lines if line.strip().startswith("step")]
    assert step == ["step", "100.0", "%", "100.00", "ms", "0.00017", "h", "6.00"]
    ledger = to_document(analysis(), price_per_gpu_hour=36_000)["ledger"]
    assert ledger is not None
    assert ledger["cost"]["money"] is not None
    assert ledger["cost"]["money"]["forward"] == 36_000 * 165 * MS / 3_600_000_000_000
    assert ledger["cost"]["money"]["launch_gap"] is None


def test_with_a_price_losses_have_theirs_by_cause_and_findings_say_what_they_save() -> None:
    """An hour at 60,000 is 1 for 60 ms: stage 0 waits as long for its schedule; of 600 ms a finding saves 8.9 %."""
    lines = shown(analysis(), price=60_000)
    assert section(lines, "LOSSES BY CAUSE") == [
        "LOSSES BY CAUSE  of all ranks; they may overlap",
        "    cause                         in  rank-hours  price",
        "    bubble.schedule: stage 0   steps     1.7e-05   1.00",
        "    bubble.schedule: stage 1   steps     1.7e-05   1.00",
        "    others waited for: rank 1  steps     4.2e-06   0.25",
        "    bubble.imbalance: stage 0  steps     3.3e-06   0.20",
        "    bubble.imbalance: stage 1  steps     3.3e-06   0.20",
    ]
    assert lines[4:6] == [
        " 1. pipeline bubble  all ranks, all steps; confidence high; saves 8.9 % (1.5e-05",
        "    rank-hours, 0.89)",
    ]
    (finding,) = to_document(analysis(), price_per_gpu_hour=60_000)["verdict"]
    assert finding["estimated_gain_money"] == pytest.approx(0.89)


def test_of_many_causes_the_largest_are_shown() -> None:
    waits = tuple(
        RankWait(rank=rank, compute_ns=0, own_ns=0, own_wait_ns=0, caused_wait_ns=(1 + rank) * 6 * MS)
        for rank in range(20)
    )
    found = replace(analysis(), bubble=None, stragglers=Stragglers(ranks=waits, named=()))
    lines = section(shown(found, price=60_000), "LOSSES BY CAUSE")
    assert lines[0] == "LOSSES BY CAUSE  of all ranks; they may overlap; the 12 largest of 20"
    assert [line.split()[4] for line in lines[2:]] == [str(rank) for rank in range(19, 7, -1)]


def test_without_a_price_small_runs_keep_their_hours_to_json() -> None:
    lines = shown(analysis())
    assert not any(" h " in line for line in section(lines, "WHERE THE TIME WENT"))
    assert not any("LOSSES BY CAUSE" in line or "rank-hours" in line for line in lines)
