"""What one record costs: `python -m tests.bench.recorder`.

Prints, from one run and interleaved, the cost of a span, a collective hook and a wait bracket
against their budgets, beside torch.profiler.record_function and an OpenTelemetry span on the same
machine. A cost is what the hooked call takes more than the bare one. Each number is the median of
rounds of many calls; budgets are judged, never asserted: a noisy machine is no wrong program.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from opentelemetry.sdk.trace import TracerProvider
from rich.console import Console
from rich.table import Table
from torch.profiler import record_function
from torch.testing._internal.distributed.fake_pg import FakeStore

import traincope
from traincope.events import RECORD_BYTES
from traincope.record.dispatcher import Interposed
from traincope.record.writer import SEGMENT_BYTES

ROUNDS = 41
CALLS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    what: str
    cost_us: float
    low_us: float
    high_us: float
    budget_us: float | None


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as directory:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
        hooks = [_span(directory), *_collective(directory), _wait(directory)]
        rows = [*hooks, _record_function(), _opentelemetry_span()]
        dist.destroy_process_group()
    _show(rows)


def _span(directory: str) -> Row:
    def spanned() -> None:
        with traincope.span("work"):
            pass

    with traincope.run(Path(directory) / "span"):
        costs = _differences(_nothing, spanned)
    return _row("traincope.span", costs, budget_us=1.0)


def _collective(directory: str) -> Iterator[Row]:
    """An all-reduce on torch's fake backend, which does nothing: what is left is the call and the hook.

    Each is waited for, outside the time, as trainings do.
    """
    tensor = torch.ones(1)

    def issue() -> float:
        spent = 0
        for _ in range(CALLS):
            start = time.perf_counter_ns()
            work = dist.all_reduce(tensor, async_op=True)
            spent += time.perf_counter_ns() - start
            work.wait()
        return spent / CALLS / 1e3

    costs, own = [], []
    for round_number in range(ROUNDS):
        bare, through = issue(), _through_python(issue)
        with traincope.run(Path(directory) / f"collective-{round_number}"):
            hooked = issue()
        costs.append(hooked - bare)
        own.append(hooked - through)
    yield _row("collective hook", costs, budget_us=12.0)
    yield _row("of it ours, without torch's way into Python", own, budget_us=6.0)


def _through_python(issue: Callable[[], float]) -> float:
    """With a kernel in front of the operator that only calls on."""
    passing = Interposed()
    passing.put("c10d", "allreduce_", lambda proceed, below: lambda keys, *args: proceed(keys & below, *args))
    try:
        return issue()
    finally:
        passing.remove()


def _wait(directory: str) -> Row:
    """`Work.wait` on works that are complete: the bracket, without anything to wait for."""
    tensor = torch.ones(1)

    def works() -> list[dist.Work]:
        return [dist.all_reduce(tensor, async_op=True) for _ in range(CALLS)]

    costs = []
    for round_number in range(ROUNDS):
        bare = _wait_all(works())
        with traincope.run(Path(directory) / f"wait-{round_number}"):
            hooked = _wait_all(works())  # issued inside, else nothing is known of them
        costs.append(hooked - bare)
    return _row("wait bracket", costs, budget_us=2.0)


def _record_function() -> Row:
    def recorded() -> None:
        with record_function("work"):
            pass

    return _row("torch.profiler.record_function (profiler off)", _differences(_nothing, recorded), budget_us=None)


def _opentelemetry_span() -> Row:
    tracer = TracerProvider().get_tracer("bench")

    def traced() -> None:
        with tracer.start_as_current_span("work"):
            pass

    return _row("OpenTelemetry span (no exporter)", _differences(_nothing, traced), budget_us=None)


def _differences(bare: Callable[[], None], other: Callable[[], None]) -> list[float]:
    """Microseconds a call that `other` takes more than `bare`, round by round."""
    return [_time(other) - _time(bare) for _ in range(ROUNDS)]


def _time(call: Callable[[], None]) -> float:
    start = time.perf_counter_ns()
    for _ in range(CALLS):
        call()
    return (time.perf_counter_ns() - start) / CALLS / 1e3


def _wait_all(works: list[dist.Work]) -> float:
    start = time.perf_counter_ns()
    for work in works:
        work.wait()
    return (time.perf_counter_ns() - start) / len(works) / 1e3


def _nothing() -> None:
    pass


def _row(what: str, costs: list[float], *, budget_us: float | None) -> Row:
    deciles = statistics.quantiles(costs, n=10)
    return Row(what=what, cost_us=statistics.median(costs), low_us=deciles[0], high_us=deciles[-1], budget_us=budget_us)


def _show(rows: list[Row]) -> None:
    console = Console()
    table = Table(title=f"One record on this machine (torch {torch.__version__}, {os.cpu_count()} cores)", box=None)
    for heading in ("what", "median us", "p10-p90 us", "budget us", ""):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for row in rows:
        within = "" if row.budget_us is None else "within" if row.cost_us <= row.budget_us else "MISSED"
        budget = "-" if row.budget_us is None else f"{row.budget_us:g}"
        table.add_row(row.what, f"{row.cost_us:.2f}", f"{row.low_us:.2f}-{row.high_us:.2f}", budget, within)
    console.print(table)
    console.print(
        f"\nOn disk {RECORD_BYTES} B a record (budget 64). In memory one mapped segment of {SEGMENT_BYTES >> 20} MiB a "
        "writing thread, and\nthose that unfinished collectives hold; on disk at most `disk_budget` a writing thread "
        "(default 256 MiB), the oldest but the first going first, counted.",
        highlight=False,
    )


if __name__ == "__main__":
    main()
