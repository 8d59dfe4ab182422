"""Cost of one record: `python -m benchmarks.recorder`.

Prints the cost of a span, a collective hook, a wait bracket and a step between windows with their budgets, and of
torch.profiler.record_function and an OpenTelemetry span on the same machine, all from one run in alternation. A cost is
the CPU time of the hooked call minus that of the bare one, so a process that takes the core does not lengthen it. Each
number is the median of rounds of many calls. Budgets are reported, never asserted, because the machine may be noisy.

Cold costs are of single calls, each after a matrix product that empties the L2 cache, as a training does. They are
medians over calls, and their p10 and p90 are of the calls with the hook.
"""

import itertools
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
from torch import nn
from torch.profiler import record_function
from torch.testing._internal.distributed.fake_pg import FakeStore

import traincope
from traincope.events import RECORD_BYTES
from traincope.native.cached import VARIABLE, Use
from traincope.native.installed import find_library
from traincope.record.instrumentation.dispatcher import Interposed
from traincope.record.segments.writer import SEGMENT_BYTES

ROUNDS = 41
CALLS = 500
FIRST_CALLS = 32
"""Calls of a run that are not measured: in the first ones, the recorder looks for the wrapper of a group."""
COLD_ROUNDS = 5
COLD_CALLS = 60
COLD_WIDTH = 768
"""Width of square matrices of 2.25 MiB each."""
LAYERS, BATCH = 2, 64
"""A training that empties the L2 cache in its forward, its backward and its optimizer."""
TRAINING_ROUNDS, TRAINING_STEPS = 301, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    name: str
    cost_us: float
    low_us: float
    high_us: float
    budget_us: float | None


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as directory:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
        natives = (False, True) if find_library().path is not None else (False,)
        hooks = [
            _span(directory),
            *(row for native in natives for row in _collective(directory, native)),
            *(_wait(directory, native) for native in natives),
            *(row for native in natives for row in _cold_collective(directory, native)),
            _step(directory, native=False),
            *(_step(directory, native=True) for native in natives if native),
            _light_training(directory),
        ]
        rows = [*hooks, _record_function(), _opentelemetry_span()]
        dist.destroy_process_group()
    _show(rows)


def _span(directory: str) -> Row:
    def spanned() -> None:
        with traincope.span("work"):
            pass

    with traincope.run(Path(directory) / "span"):
        costs = _differences(_nothing, spanned)
    return _row("traincope.span", costs, budget_us=0.7)


def _run(directory: str, name: str, native: bool) -> traincope.Run:
    """A run by the native recorder or by the Python hooks."""
    os.environ[VARIABLE] = Use.REQUIRE if native else Use.OFF
    return traincope.run(Path(directory) / f"{name}-{native}", budget=None)


def _named(name: str, native: bool) -> str:
    return f"{name}, native" if native else name


def _collective(directory: str, native: bool) -> Iterator[Row]:
    """An all-reduce on torch's fake backend, which does nothing, so the time is that of the call and the hook.

    As in a training, each is waited for, outside the measured time.
    """
    tensor = torch.ones(1)

    def issue() -> float:
        spent = 0
        for _ in range(CALLS):
            start = time.thread_time_ns()
            work = dist.all_reduce(tensor, async_op=True)
            spent += time.thread_time_ns() - start
            work.wait()
        return spent / CALLS / 1e3

    costs, recorder_costs = [], []
    for round_number in range(ROUNDS):
        bare, through = issue(), _through_python(issue)
        with _run(directory, f"collective-{round_number}", native):
            for _ in range(FIRST_CALLS):
                _all_reduce(tensor).wait()
            hooked = issue()
        costs.append(hooked - bare)
        recorder_costs.append(hooked - through)
    yield _row(_named("collective hook", native), costs, budget_us=1.0 if native else 9.0)
    if not native:
        yield _row("of which traincope, without torch's call into Python", recorder_costs, budget_us=3.0)


def _all_reduce(tensor: torch.Tensor) -> dist.Work:
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    return work


def _through_python(issue: Callable[[], float]) -> float:
    """The same call with a kernel in front of the operator that only forwards it."""
    passing = Interposed("c10d")
    passing.put("allreduce_", lambda proceed, below: lambda keys, *args: proceed(keys & below, *args))
    try:
        return issue()
    finally:
        passing.remove()


def _wait(directory: str, native: bool) -> Row:
    """`Work.wait` on completed works: only the bracket costs time."""
    tensor = torch.ones(1)

    def works() -> list[dist.Work]:
        return [dist.all_reduce(tensor, async_op=True) for _ in range(CALLS)]

    costs = []
    for round_number in range(ROUNDS):
        bare = _wait_all(works())
        with _run(directory, f"wait-{round_number}", native):
            hooked = _wait_all(works())  # issued inside a run, otherwise the recorder does not know them
        costs.append(hooked - bare)
    return _row(_named("wait bracket", native), costs, budget_us=1.5)


def _cold_collective(directory: str, native: bool) -> Iterator[Row]:
    """A collective's hook and its wait, with caches as a training leaves them."""
    tensor, empty_caches = torch.ones(1), _matrix_product()

    def times() -> tuple[list[int], list[int]]:
        issued, waited = [], []
        for _ in range(COLD_CALLS):
            empty_caches()
            start = time.thread_time_ns()
            work = dist.all_reduce(tensor, async_op=True)
            issued.append(time.thread_time_ns() - start)
            empty_caches()
            start = time.thread_time_ns()
            work.wait()
            waited.append(time.thread_time_ns() - start)
        return issued, waited

    bare, hooked = [], []
    for round_number in range(COLD_ROUNDS):
        bare.append(times())
        with _run(directory, f"cold-{round_number}", native):
            hooked.append(times())
    budgets = (("collective hook, cold", 0, 10.0 if native else 30.0), ("wait bracket, cold", 1, None))
    for name, part, budget_us in budgets:
        yield _cold_row(
            _named(name, native), [row[part] for row in bare], [row[part] for row in hooked], budget_us=budget_us
        )


def _step(directory: str, *, native: bool) -> Row:
    """A step with a forward, a backward, an optimizer's step and `zero_grad`, in cold caches.

    It is one between windows, or one with detail by the native recorder. The modules and the optimizer do nothing, so
    the difference is the hooks'.
    """
    model, optimizer = nn.Identity(), _Idle([nn.Parameter(torch.ones(1))], lr=0.1)
    numbers, empty_caches = torch.ones(1, requires_grad=True), _matrix_product()

    def step() -> int:
        spent = 0
        loss = numbers * 1
        for call in (lambda: model(numbers), loss.backward, optimizer.step, optimizer.zero_grad):
            empty_caches()
            start = time.thread_time_ns()
            call()
            spent += time.thread_time_ns() - start
        return spent

    bare, hooked = [], []
    for round_number in range(COLD_ROUNDS):
        bare.append([step() for _ in range(COLD_CALLS)])
        name = f"step-{round_number}"
        with _run(directory, name, native) if native else traincope.run(Path(directory) / name, level=0):
            if native:
                _all_reduce(torch.ones(1)).wait()  # native code knows the thread from now on
            hooked.append([step() for _ in range(COLD_CALLS)])
    what = "step with detail, cold, native" if native else "step between windows, cold"
    return _cold_row(what, bare, hooked, budget_us=None if native else 50.0)


def _light_training(directory: str) -> Row:
    """A whole step between windows, bare and at level 0 in turn, from outside."""
    model = nn.Sequential(*(nn.Linear(COLD_WIDTH, COLD_WIDTH) for _ in range(LAYERS)))
    optimizer, batch = torch.optim.SGD(model.parameters(), lr=1e-6), torch.ones(BATCH, COLD_WIDTH)

    def step() -> int:
        start = time.thread_time_ns()
        model(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.thread_time_ns() - start

    costs = []
    for round_number in range(TRAINING_ROUNDS):
        bare = [step() for _ in range(TRAINING_STEPS)]
        with traincope.run(Path(directory) / f"training-{round_number}", level=0, agent=False):
            step()
            hooked = [step() for _ in range(TRAINING_STEPS)]
        costs.append((statistics.median(hooked) - statistics.median(bare)) / 1e3)
    return _row("step of a training between windows, from outside", costs, budget_us=50.0)


class _Idle(torch.optim.SGD):
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Do nothing."""


def _matrix_product() -> Callable[[], object]:
    """A call that replaces what is in the L2 cache."""
    left, right, product = (torch.ones(COLD_WIDTH, COLD_WIDTH) for _ in range(3))
    return lambda: torch.mm(left, right, out=product)


def _cold_row(name: str, bare: list[list[int]], hooked: list[list[int]], *, budget_us: float | None) -> Row:
    """Difference of the medians of single calls, ns, in rounds."""
    base = statistics.median(itertools.chain.from_iterable(bare))
    return _row(name, [(spent - base) / 1e3 for spent in itertools.chain.from_iterable(hooked)], budget_us=budget_us)


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
    """Microseconds per call by which `other` exceeds `bare`, per round."""
    return [_time(other) - _time(bare) for _ in range(ROUNDS)]


def _time(call: Callable[[], None]) -> float:
    start = time.thread_time_ns()
    for _ in range(CALLS):
        call()
    return (time.thread_time_ns() - start) / CALLS / 1e3


def _wait_all(works: list[dist.Work]) -> float:
    start = time.thread_time_ns()
    for work in works:
        work.wait()
    return (time.thread_time_ns() - start) / len(works) / 1e3


def _nothing() -> None:
    pass


def _row(name: str, costs: list[float], *, budget_us: float | None) -> Row:
    deciles = statistics.quantiles(costs, n=10)
    return Row(name=name, cost_us=statistics.median(costs), low_us=deciles[0], high_us=deciles[-1], budget_us=budget_us)


def _show(rows: list[Row]) -> None:
    console = Console()
    table = Table(title=f"One record on this machine (torch {torch.__version__}, {os.cpu_count()} cores)", box=None)
    for heading in ("what", "median us", "p10-p90 us", "budget us", ""):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for row in rows:
        within = "" if row.budget_us is None else "within" if row.cost_us <= row.budget_us else "MISSED"
        budget = "-" if row.budget_us is None else f"{row.budget_us:g}"
        table.add_row(row.name, f"{row.cost_us:.2f}", f"{row.low_us:.2f}-{row.high_us:.2f}", budget, within)
    console.print(table)
    console.print(
        (
            f"\nOn disk {RECORD_BYTES} B per record (budget 64). In memory one mapped segment of {SEGMENT_BYTES >> 20} "
            "MiB per writing thread, and\nthose that unfinished collectives hold; on disk at most `disk_budget` per "
            "writing thread (default 256 MiB): the oldest\nsegments except the first are deleted and counted."
        ),
        highlight=False,
    )


if __name__ == "__main__":
    main()
