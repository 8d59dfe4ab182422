"""Every sentence that gives a reason or advice about imported traces: printed for a file that shows it, and not for one
that does not.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.ingest.writing import Event, Raw, complete, kineto
from traincope.analysis import analyze
from traincope.ingest import import_traces
from traincope.report.text.text import render
from traincope.timeline import open_run

H100 = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]}
JOB = {"distributedInfo": {"rank": 0, "world_size": 2, "backend": "nccl"}}
DIMS = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}
STRIDES = {"Input Strides": [[64, 1], [64, 1]]}
GROUP = {
    "Collective name": "allreduce",
    "Process Group Name": "0",
    "Process Group Description": "dp",
    "Group size": 2,
    "Process Group Ranks": "[0, 1]",
    "In msg nelems": 8,
    "Out msg nelems": 8,
    "dtype": "Float",
}
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def host(name: str, start: int, duration: int, *, cat: str = "cpu_op", **args: Any) -> Event:
    return complete(name, str(start), str(duration), cat=cat, pid=1, tid=1, **args)


def launched(
    name: str, start: int, duration: int, *, call: bool = True, pid: int = 0, tid: int = 7, **args: Any
) -> list[Event]:
    """A kernel, and the call that launched it 2 us before."""
    calls = [host("cudaLaunchKernel", start - 2, 1, cat="cuda_runtime", correlation=start)] if call else []
    return [*calls, complete(name, str(start), str(duration), pid=pid, tid=tid, correlation=start, **args)]


STEP = host("ProfilerStep#1", 0, 1000, cat="user_annotation")
STEPS = [STEP, host("ProfilerStep#2", 1000, 1000, cat="user_annotation")]
WORK = launched("gemm", 10, 980)
MM = host("aten::mm", 5, 4, **DIMS, **STRIDES)
FILL = host("aten::fill_", 5, 1, **DIMS)
FORWARD = host("## forward ##", 1, 20, cat="user_annotation")
SEND = launched(NCCL, 500, 400, tid=20)


END = '"args": {}}]}'
"""About as much text as a file loses that is cut in its last event."""


@dataclass(frozen=True, kw_only=True)
class File:
    """One trace per rank."""

    ranks: Sequence[Sequence[Event]]
    head: dict[str, Any] = field(default_factory=dict)
    cut: bool = False


def file(*events: Event, head: dict[str, Any] | None = None, cut: bool = False) -> File:
    return File(ranks=[events], head=head or {}, cut=cut)


def later(*events: Event) -> list[Event]:
    """The same events 1 ms later."""
    return [{**event, "ts": Raw(str(int(event["ts"]) + 1000))} for event in events]


def of_group(*ranks: int) -> File:
    """Traces of these ranks of two: both name the group of their all-reduce."""
    named = [STEP, *launched("gemm", 10, 300), *launched(NCCL, 500, 400, tid=20, **GROUP)]
    return File(ranks=[named for _ in ranks], head={} if len(ranks) > 1 else JOB)


UNNAMED = File(ranks=[[STEP, *launched("gemm", 10, 300), *SEND]] * 2)

OF_FOUR = {"Collective name": "send", "Group size": 4, "Process Group Ranks": "[0, 1, 2, 3]"}
MESSAGES = file(
    STEP,
    *launched("gemm", 10, 300),
    *launched("ncclDevKernel_SendRecv", 500, 400, tid=20, **{**GROUP, **OF_FOUR}),
    head={"distributedInfo": {"rank": 0, "world_size": 4, "backend": "nccl"}},
)

REASONS: dict[str, tuple[File, File]] = {
    "has no marks of steps: call the profiler's step() after each step": (file(*WORK), file(STEP, *WORK)),
    "or import it again with --step-marker 'my step'": (
        file(*(host("my step", at, 500, cat="user_annotation") for at in (0, 500, 1000)), *WORK),
        file(*(host("a part", at, 100, cat="user_annotation") for at in (0, 500, 1000)), *WORK),
    ),
    "give no steps, so the ledger is unknown": (file(*WORK), file(STEP, *WORK)),
    "marks steps, but contains nothing that computes": (
        file(STEP, complete("Memset", "5", "5", cat="gpu_memset")),
        file(STEP, *WORK),
    ),
    "Add ProfilerActivity.CUDA": (file(STEP, MM, head=H100), file(STEP, *WORK, MM, head=H100)),
    "the traces contain neither GPU events nor steps": (file(MM), file(STEP, MM)),
    "traces without events of a GPU were imported": (file(STEP, MM), file(STEP, *WORK)),
    "is outside of the traced operators": (file(STEP, MM), file(STEP, *launched("gemm", 500, 100))),
    "idle time of the GPUs of which the traces do not show the cause": (
        file(STEP, *launched("gemm", 10, 300)),
        file(*STEPS, *launched("gemm", 10, 900), *launched("gemm", 1010, 990)),
    ),
    "Trace one step more: the launch": (
        file(STEP, *launched("gemm", 10, 300)),
        file(STEP, *launched("gemm", 10, 300, call=False)),
    ),
    "Trace one step more, with ProfilerActivity.CPU": (
        file(STEP, *launched("gemm", 10, 300, call=False)),
        file(STEP, *({**each, "cat": each["cat"].replace("cuda", "hip")} for each in launched("gemm", 10, 300))),
    ),
    "step boundaries were inferred from the optimizer": (
        file(*(host("Optimizer.step#SGD.step", at, 2, cat="user_annotation") for at in (0, 500, 996)), *WORK),
        file(STEP, host("Optimizer.step#SGD.step", 0, 2, cat="user_annotation"), *WORK),
    ),
    "the traces contain no shapes; profile with record_shapes=True": (
        file(STEP, *WORK),
        file(STEP, FILL, *WORK),
    ),
    "no operator of the traces is a product whose FLOPs its shapes give": (
        file(STEP, FILL, *launched("vectorized_elementwise_kernel", 10, 900)),
        file(STEP, MM, *launched("gemm", 7, 900)),
    ),
    "of the compute time have unknown FLOPs, such as gemm": (
        file(STEP, FILL, *launched("gemm", 100, 800)),
        file(STEP, MM, *launched("gemm", 7, 900)),
    ),
    "are launched outside of forward and backward; annotate them": (
        file(STEP, MM, *launched("gemm", 7, 900), head=H100),
        file(STEP, FORWARD, MM, *launched("gemm", 7, 900), head=H100),
    ),
    "the memory bandwidth of this device is unknown; give the GPU's full name": (
        file(STEP, *WORK),
        file(STEP, *WORK, head=H100),
    ),
    "the GPUs wait for the host to launch their next kernel": (
        file(STEP, *launched("gemm", 500, 400)),
        file(STEP, *launched("gemm", 500, 400, call=False)),
    ),
    "The calls in the traces do not name the works that they launch": (
        file(STEP, host("cudaLaunchKernel", 5, 1, cat="cuda_runtime"), *launched("gemm", 10, 300, call=False)),
        file(STEP, *launched("gemm", 10, 300, call=False)),
    ),
    "trace the host too (ProfilerActivity.CPU)": (
        file(STEP, *launched("gemm", 10, 300, call=False)),
        file(STEP, MM, *launched("gemm", 10, 300, call=False)),
    ),
    "Trace all ranks in the same steps, and import the traces together": (of_group(0), UNNAMED),
    "messages only in groups of two ranks": (MESSAGES, of_group(0)),
    "in collectives of unknown groups": (UNNAMED, of_group(0)),
    "the trace lacks the launches of": (
        file(STEP, *launched("gemm", 10, 400), *launched("gemm", 500, 400, call=False)),
        file(STEP, *launched("gemm", 10, 400), *launched("gemm", 500, 400)),
    ),
    "records of their peers are missing": (of_group(0), of_group(0, 1)),
    "the traces do not show which kernels of other ranks belong to the same collective": (UNNAMED, of_group(0)),
    "They name no process group": (UNNAMED, of_group(0)),
    "marks step 1 again after the end: two profiles are in one file": (
        file(STEP, *WORK, host("ProfilerStep#1", 5000, 1000, cat="user_annotation")),
        file(STEP, *WORK, host("ProfilerStep#1", 0, 1000, cat="user_annotation")),
    ),
    "marks step 1 again": (
        file(STEP, *WORK, host("ProfilerStep#1", 5000, 1000, cat="user_annotation")),
        file(host("ProfilerStep#1", 0, 0, cat="user_annotation"), *WORK),
    ),
    "has kernels of 2 GPUs: steps and the ledger are those of GPU 0, which has the most": (
        file(STEP, *WORK, *launched("gemm", 500, 10), *launched("gemm", 20, 900, pid=1)),
        file(STEP, *WORK),
    ),
    "marks step 1 after a step with a higher number: two profiles are in one file": (
        file(
            host("ProfilerStep#2", 0, 1000, cat="user_annotation"),
            *WORK,
            host(STEP["name"], 5000, 1000, cat="user_annotation"),
        ),
        file(STEP, *WORK, host("ProfilerStep#2", 5000, 1000, cat="user_annotation")),
    ),
    "has 2 events twice: each counts once": (
        file(STEP, *WORK, *WORK),
        file(STEP, *WORK, MM, MM),
    ),
    "the traces are cut, so the use of time is unknown": (
        file(*WORK, MM, cut=True),
        file(*WORK, MM),
    ),
    "The copied memory is pinned already": (
        file(STEP, *launched("gemm", 10, 500), *launched("Memcpy HtoD (Pinned -> Device)", 510, 400, cat="gpu_memcpy")),
        file(
            STEP, *launched("gemm", 10, 500), *launched("Memcpy HtoD (Pageable -> Device)", 510, 400, cat="gpu_memcpy")
        ),
    ),
    "Copy from pinned memory on a separate stream": (
        file(*launched("gemm", 10, 500), *launched("Memcpy HtoD (Pageable -> Device)", 510, 400, cat="gpu_memcpy")),
        file(*launched("gemm", 10, 500), *launched("Memcpy PtoP (Device -> Device)", 510, 400, cat="gpu_memcpy")),
    ),
    "marks step 1 in several processes: two profiles are in one file": (
        file(STEP, *WORK, complete("ProfilerStep#1", "0", "1000", cat="user_annotation", pid=2, tid=2)),
        file(STEP, *WORK, complete("ProfilerStep#2", "1000", "1000", cat="user_annotation", pid=1, tid=1)),
    ),
    "repeats steps of rank 0, so its own are left out": (
        File(ranks=[[STEP, *WORK], later(STEP, *WORK)], head={"distributedInfo": {"rank": 0, "world_size": 1}}),
        File(ranks=[[STEP, *WORK], later(STEP, *WORK)]),
    ),
    "are both of rank 0, and their GPU works at the same time": (
        File(ranks=[[STEP, *WORK], [STEP, *WORK]], head={"distributedInfo": {"rank": 0, "world_size": 1}}),
        File(ranks=[[STEP, *WORK], [STEP, *WORK]]),
    ),
    "or for 1 event without a valid time, if they are kernels": (
        file(STEP, *launched("gemm", 10, 500), *launched("gemm", 900, 50), complete("gemm", "600", "NaN")),
        file(STEP, *launched("gemm", 10, 500), *launched("gemm", 900, 50)),
    ),
    "is cut, so it gives no ledger": (file(STEP, *WORK, MM, cut=True), file(STEP, *WORK, MM)),
    "has 1 event with a negative duration, counted as 0 ns": (
        file(STEP, *WORK, complete("x", "1", "-1", cat="cpu_op", pid=1, tid=1)),
        file(STEP, *WORK),
    ),
    "of the kernels' time is in kernels of unknown purpose, such as mine: they count as compute": (
        file(STEP, *launched("void mine<8>(int)", 10, 980)),
        file(STEP, *WORK),
    ),
    "and no loss reaches 5.0 %; 28.6 % of the kernels' time is of unknown purpose": (
        file(STEP, *launched("gemm", 10, 700), *launched("mine", 710, 280)),
        file(STEP, *WORK),
    ),
    "of the traced time; 28.6 % of the kernels' time is of unknown purpose": (
        file(*launched("gemm", 10, 700), *launched("mine", 710, 280)),
        file(*WORK),
    ),
    "without a valid time": (
        file(STEP, *WORK, complete("x", "NaN", "1", cat="cpu_op", pid=1, tid=1)),
        file(STEP, *WORK),
    ),
}
"""Sentence, or the part of it that does not vary -> a file that justifies it, and one that does not."""


def printed(given: File, folder: Path) -> str:
    """The report in words with one blank between them."""
    folder.mkdir()
    traces = []
    for rank, events in enumerate(given.ranks):
        traces.append(folder / f"rank{rank}.json")
        text = kineto(events, head=given.head)
        traces[-1].write_text(text[: -len(END)] if given.cut else text)
    import_traces(traces, folder / "run")
    console = Console(file=io.StringIO(), width=200)
    render(analyze(open_run(folder / "run")), console)
    assert isinstance(console.file, io.StringIO)
    return " ".join(console.file.getvalue().split())


@pytest.mark.parametrize("sentence", REASONS)
def test_a_reason_is_printed_only_where_the_file_shows_it(sentence: str, tmp_path: Path) -> None:
    justifies, does_not = REASONS[sentence]
    assert sentence in printed(justifies, tmp_path / "justifies")
    assert sentence not in printed(does_not, tmp_path / "does not")


@pytest.mark.parametrize("marks", [[], [STEP]], ids=["without steps", "with steps"])
def test_gpus_whose_kernels_have_no_known_purpose_are_not_healthy(marks: list[Event], tmp_path: Path) -> None:
    text = printed(file(*marks, *launched("mine", 10, 600), *launched("gemm", 610, 385)), tmp_path / "trace")
    assert "60.9 % of the kernels' time is in kernels of unknown purpose" in text
    assert "healthy" not in text
