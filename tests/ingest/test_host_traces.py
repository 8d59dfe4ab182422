"""Traces without a GPU, and sizes that only shapes give: terms and bytes computed by hand. Times are in us."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.ingest.writing import Event, complete, kineto
from traincope.analysis.analyze import Analysis, analyze
from traincope.analysis.attribution.stalls import AmbiguousWait
from traincope.analysis.verdict.findings import FindingKind
from traincope.ingest import import_traces
from traincope.timeline import LedgerClock, open_run

NCCL = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)"


def on_host(name: str, start: int, duration: int, *, cat: str = "cpu_op", tid: int = 1, **args: Any) -> Event:
    return complete(name, str(start), str(duration), cat=cat, pid=1, tid=tid, **args)


def step(number: int, start: int, duration: int) -> Event:
    return on_host(f"ProfilerStep#{number}", start, duration, cat="user_annotation")


def imported(folder: Path, *ranks: Sequence[Event], head: dict[str, Any] | None = None) -> Analysis:
    traces = []
    for rank, events in enumerate(ranks):
        traces.append(folder / f"rank{rank}.json")
        traces[-1].write_text(kineto(events, head=head))
    import_traces(traces, folder / "run")
    return analyze(open_run(folder / "run"))


def terms(analysis: Analysis, number: int) -> dict[str, int]:
    """Terms of rank 0's step in us, without those that took no time."""
    ledger = analysis.ledger.ranks[0]
    at = ledger.numbers.tolist().index(number)
    return {term: int(ns[at]) // 1000 for term, ns in ledger.terms.items() if ns is not None and ns[at]}


def test_a_trace_of_the_cpu_has_steps_and_a_ledger_on_the_hosts_clock(tmp_path: Path) -> None:
    analysis = imported(
        tmp_path, [step(1, 0, 100), step(2, 100, 100), on_host("aten::mm", 10, 50), on_host("aten::mm", 110, 50)]
    )
    assert analysis.ledger.clock is LedgerClock.HOST
    assert [terms(analysis, number) for number in (1, 2)] == 2 * [{"other_compute": 50, "unattributed": 50}]
    assert analysis.ledger.total("launch_gap") is None
    assert [finding.kind for finding in analysis.verdict] == [FindingKind.UNATTRIBUTED]


TRAINING = [
    step(1, 0, 1000),
    on_host("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 100, cat="user_annotation"),
    on_host("aten::stack", 50, 30),
    on_host("DistributedDataParallel.forward", 100, 200, cat="user_annotation"),
    on_host("aten::linear", 120, 100),
    on_host("aten::addmm", 130, 80, **{"Sequence number": 1}),
    on_host("autograd::engine::evaluate_function: AddmmBackward0", 300, 100),
    on_host("aten::mm", 310, 50),
    on_host("c10d::allreduce_", 400, 20),
    on_host(
        "gloo:all_reduce", 350, 150, cat="user_annotation", tid=2, **{"Input Dims": [[25]], "Input type": ["float"]}
    ),
    on_host("Optimizer.step#AdamW.step", 600, 100, cat="user_annotation"),
    on_host("aten::add_", 610, 80),
    on_host("save_checkpoint", 800, 150, cat="user_annotation"),
]
"""One step. Backward hides 50 us of the all-reduce; nothing is known of 100 to 120 and similar gaps."""


def test_operators_own_the_time_of_the_thread_that_trains(tmp_path: Path) -> None:
    analysis = imported(tmp_path, TRAINING)
    assert terms(analysis, 1) == {
        "data_wait": 100,
        "forward": 100,
        "backward": 100,
        "exposed_transfer[unknown]": 100,
        "optimizer": 80,
        "checkpoint_stall": 150,
        "unattributed": 1000 - 630,
    }
    (sent,) = analysis.comm
    assert (sent.operation, sent.num_bytes) == ("all_reduce", 100)


def test_waits_whose_peers_have_traces_lack_no_records(tmp_path: Path) -> None:
    """Both ranks have traces, but nothing in them matches their all-reduces."""
    analysis = imported(tmp_path, TRAINING, TRAINING)
    assert analysis.ledger.ambiguous_waits() == {("unknown", AmbiguousWait.NOT_MATCHED): 200_000}


@pytest.mark.parametrize(
    ("head", "name"), [({"deviceProperties": [{"id": 0, "name": "NVIDIA H100"}]}, "aten::mm"), ({}, "nccl:all_reduce")]
)
def test_the_host_of_a_gpu_is_not_all_that_is_to_know(head: dict[str, Any], name: str, tmp_path: Path) -> None:
    busy = [step(1, 0, 100), on_host("aten::mm", 0, 100), on_host(name, 50, 10)]
    first = imported(tmp_path, busy, head=head).verdict[0]
    assert (first.kind, "ProfilerActivity.CUDA" in first.advice) == (FindingKind.NO_STEPS, True)


def test_a_busy_cpu_is_healthy(tmp_path: Path) -> None:
    verdict = imported(tmp_path, [step(1, 0, 100), on_host("aten::mm", 0, 100)]).verdict
    assert [finding.kind for finding in verdict] == [FindingKind.HEALTHY]


def test_annotations_that_old_torch_wrote_as_operators_compute_nothing(tmp_path: Path) -> None:
    events = [on_host("ProfilerStep#1", 0, 100), on_host("train_one", 0, 100), on_host("aten::mm", 20, 30)]
    assert terms(imported(tmp_path, events), 1) == {"other_compute": 30, "unattributed": 70}


def sending(*around: Event, name: str = NCCL) -> list[Event]:
    """A step with a kernel of NCCL within these ranges of the host, and one that computes."""
    return [
        step(1, 0, 1000),
        *around,
        on_host("cudaLaunchKernel", 110, 5, cat="cuda_runtime", correlation=1),
        complete(name, "120", "300", tid=20, correlation=1),
        on_host("cudaLaunchKernel", 150, 2, cat="cuda_runtime", correlation=2),
        complete("sm80_gemm", "420", "300", correlation=2),
    ]


def shaped(name: str, dims: list[Any], types: list[str], *, cat: str = "user_annotation") -> Event:
    return on_host(name, 105, 30, cat=cat, **{"Input Dims": dims, "Input type": types})


@pytest.mark.parametrize(
    ("around", "name", "num_bytes"),
    [
        ([shaped("nccl:all_reduce", [[447923396]], ["float"])], NCCL, 4 * 447923396),
        ([shaped("nccl:all_reduce", [[3, 5], [7]], 2 * ["c10::BFloat16"])], NCCL, 2 * 22),
        ([shaped("nccl:all_reduce", [[3], [7]], ["float", ""])], NCCL, None),
        ([shaped("nccl:all_reduce", [], [])], NCCL, None),
        ([shaped("nccl:all_reduce", [[[3]]], ["float"])], NCCL, None),
        ([], NCCL, None),
        ([shaped("nccl:reduce_scatter", [[64]], ["c10::Half"])], "ncclKernel_ReduceScatter_RING", 128),
        ([shaped("nccl:_all_gather_base", [[64]], ["c10::Half"])], "ncclKernel_AllGather_RING", None),
        (
            [
                on_host(
                    "c10d::_allgather_base_", 100, 50, **{"Input Dims": [[512], [64], []], "Input type": ["float"] * 2}
                ),
                shaped("nccl:_all_gather_base", [[64]], ["float"]),
            ],
            "ncclKernel_AllGather_RING",
            2048,
        ),
    ],
)
def test_shapes_around_a_launch_give_the_bytes(
    around: list[Event], name: str, num_bytes: int | None, tmp_path: Path
) -> None:
    """As in traces of torch before 2.2. What the shapes do not give is unknown, not 0."""
    (operation,) = imported(tmp_path, sending(*around, name=name)).comm
    assert operation.num_bytes == num_bytes


def test_a_trace_that_gives_no_steps_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "none.json").write_text(kineto([complete("gemm", "0", "10")]))
    (tmp_path / "idle.json").write_text(kineto([step(1, 0, 100), complete("Memset", "0", "10", cat="gpu_memset")]))
    import_traces([tmp_path / "none.json", tmp_path / "idle.json"], tmp_path / "run")
    problems = [rank.problems for rank in open_run(tmp_path / "run").run.ranks]
    assert json.dumps(problems) == json.dumps(
        [
            ["none.json of rank 0 has no marks of steps: call the profiler's step() after each step, and trace again"],
            ["idle.json of rank 1 marks steps, but contains nothing that computes"],
        ]
    )


def test_launches_of_nccl_are_no_communication_of_the_host(tmp_path: Path) -> None:
    """Without GPU events, a trace does not show when NCCL communicates."""
    launch = on_host("nccl:all_reduce", 50, 40, cat="user_annotation", tid=2)
    analysis = imported(tmp_path, [step(1, 0, 100), on_host("aten::mm", 0, 40), launch])
    assert terms(analysis, 1) == {"other_compute": 40, "unattributed": 60}
    assert analysis.comm == ()


def test_waits_for_stragglers_are_unknown_where_no_collective_is_matched(tmp_path: Path) -> None:
    """Not 0: a rank may wait for another in each of them."""
    assert imported(tmp_path, TRAINING, TRAINING).stragglers.ranks == ()
    (tmp_path / "alone").mkdir()
    (waits,) = imported(tmp_path / "alone", [step(1, 0, 100), on_host("aten::mm", 0, 100)]).stragglers.ranks
    assert waits.straggler_wait_ns == 0


def test_names_of_ones_own_are_neither_a_gpu_nor_a_transfer(tmp_path: Path) -> None:
    own = [
        on_host("## maybe move to cuda ##", 700, 50, cat="user_annotation"),
        on_host("mpi: load file", 350, 150, cat="user_annotation", tid=3),
    ]
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    analysis, with_own = imported(tmp_path / "a", TRAINING), imported(tmp_path / "b", [*TRAINING, *own])
    assert terms(with_own, 1) == terms(analysis, 1)
    assert [finding.kind for finding in with_own.verdict] == [finding.kind for finding in analysis.verdict]
    on_gpu = imported(tmp_path / "c", [*TRAINING, on_host("cudaMemcpyAsync", 700, 5, cat="cuda_runtime")])
    assert "the traces contain no GPU events" in on_gpu.verdict[0].evidence


@pytest.mark.parametrize("name", ["torch_ccl::allreduce", "oneccl_bindings_for_pytorch::allreduce::wait"])
def test_an_operator_of_oneccl_does_not_compute(name: str, tmp_path: Path) -> None:
    analysis = imported(tmp_path, [step(1, 0, 100), on_host("aten::mm", 10, 50), on_host(name, 60, 30)])
    assert terms(analysis, 1) == {"other_compute": 50, "unattributed": 50}
