"""Runs that consist of kernel traces written by hand, without files."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.timeline.traces import Row, launch, operator
from tests.timeline.traces import kernel as kernel_row
from traincope.analysis import Analysis, analyze
from traincope.events import CLEAN, Work
from traincope.store import RankRecords, RunRecords
from traincope.store.job.manifests import RankInfo, RunInfo
from traincope.store.side_tables.traces import Trace
from traincope.timeline import build_timeline
from traincope.timeline.device import with_device_records
from traincope.topology import Host, RankCoord


def run_of(*traces: Trace, world_size: int | None = None, settings: Mapping[str, Any] | None = None) -> RunRecords:
    """Build the imported run of one trace per rank, with the records of its GPUs."""
    run = RunRecords(
        path=Path("imported"),
        info=RunInfo(
            id="imported",
            world_size=world_size or len(traces),
            mesh={},
            started_wall_ns=0,
            versions={},
            command="traincope import",
            settings=dict(settings or {}),
            imported=True,
        ),
        ranks=tuple(_rank(number) for number in range(len(traces))),
        attempts=1,
        missing=(),
        problems=(),
    )
    return with_device_records(run, {number: (trace,) for number, trace in enumerate(traces)})


def analysis_of(*traces: Trace, world_size: int | None = None, settings: Mapping[str, Any] | None = None) -> Analysis:
    return analyze(build_timeline(run_of(*traces, world_size=world_size, settings=settings)))


def ledger_of(*traces: Trace, rank: int = 0, world_size: int | None = None) -> dict[int, dict[str, int]]:
    """Return the terms of each step of a rank, without those that took no time."""
    (ledger,) = (each for each in analysis_of(*traces, world_size=world_size).ledger.ranks if each.rank == rank)
    return {
        int(number): {term: int(ns[at]) for term, ns in ledger.terms.items() if ns is not None and ns[at]}
        for at, number in enumerate(ledger.numbers)
    }


def _rank(number: int) -> RankRecords:
    return RankRecords(
        attempt=0,
        info=RankInfo(
            coord=RankCoord(rank=number),
            host=Host(name=f"imported-{number}", boot_id=""),
            pid=0,
            started_wall_ns=0,
            ended_wall_ns=0,
            ending=CLEAN,
            probes={},
            recorder={},
        ),
        names=(),
        groups=(),
        segments=(),
        problems=(),
    )


class Program:
    """Rows of one rank. Each work is launched by a call of 1 ns."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def range(self, name: str, start_ns: int, end_ns: int, *, thread: str = "1", category: str = "cpu_op") -> None:
        self.rows.append(replace(operator(name, start_ns, end_ns, thread=thread), category=category))

    def step(self, number: int, start_ns: int, end_ns: int) -> None:
        self.range(f"ProfilerStep#{number}", start_ns, end_ns, category="user_annotation")

    def operator(
        self, name: str, start_ns: int, end_ns: int, *, sequence: int, forward_thread: int = 0, thread: str = "1"
    ) -> None:
        row = operator(name, start_ns, end_ns, thread=thread)
        self.rows.append(replace(row, sequence=sequence, forward_thread=forward_thread))

    def product(self, at_ns: int, *, flops: float, work: Work = Work.MATMUL, dtype: str = "bfloat16") -> None:
        """An operator of 2 ns with recorded shapes, whose kernel starts 2 ns after it and runs for 5 ns."""
        self.rows.append(operator("aten::mm", at_ns, at_ns + 2, flops=flops, dtype=dtype, work=work))
        self.kernel(at_ns + 1, at_ns + 2, at_ns + 7)

    def kernel(
        self, launched_ns: int, start_ns: int, end_ns: int, *, name: str = "gemm", thread: str = "1", stream: str = "7"
    ) -> None:
        number = len(self.rows) + 1
        self.rows.append(launch(launched_ns, number, thread=thread))
        self.rows.append(kernel_row(name, start_ns, end_ns, stream=stream, of=number))
