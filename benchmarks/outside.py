"""The overhead that a job measures in itself, next to what is measured from outside: `python -m benchmarks.outside`.

A tensor-parallel loop of 11 all-reduces per step on 2 ranks. From outside: blocks of steps that record everything, and
blocks at level 0, each divided by the bare block of the same round: step time, and CPU time of both ranks with all
their threads and children. In the job: the interval that the report gives for steps in windows against the light steps
around them. It sees no cost of light steps, so it is compared with everything recorded against level 0.

Both are measured with glibc's usual malloc, and with one that returns no memory to the kernel and maps none for single
blocks. Page faults per step show whether recording changes what malloc reuses.

Two controls: steps in windows that burn 2 % of a step deliberately, and windows that record nothing.
"""

import os
import resource
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table

import traincope
from benchmarks.paired import Block, in_turns, interval, ratios, step_seconds
from tests.distributed.ranks.pool import Pool
from traincope.analysis.ledger.sampling import MeasuredOverhead
from traincope.analysis.ledger.sampling import sampling as measured_in_job
from traincope.events import BLOCK_STEPS, DETAIL_LEVEL
from traincope.record import run as recording
from traincope.record.session import sampling

ROUNDS, STEPS, SETTLING = 40, 24, 4
WINDOWS = 200
"""Windows of the run that measures itself: one of every two blocks of steps. So many find a burned 2 %."""
LAYERS, WIDTH, BATCH = 5, 256, 512
BURNED = 0.02
NEAR = 8
"""Light steps whose median length is the usual one: the machine's speed changes."""
MALLOCS = (
    ("usual", {}),
    ("holds memory", {"MALLOC_TRIM_THRESHOLD_": "2000000000", "MALLOC_MMAP_THRESHOLD_": "2000000000"}),
)
BARE, LIGHT, RECORDED = "bare", "level 0", "recorded"
OBSERVED = {LIGHT: {"level": 0}, RECORDED: {"budget": None}}
"""Kind of block -> options of `run`."""
PLAIN, BURNING, EMPTY = "as it is", "2 % burned in windows", "windows record nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted(Block):
    """A block with what the kernel counted in it, per step."""

    cpu_seconds: float
    page_faults: float


def main() -> None:
    """Measure and print."""
    table = Table(title=f"Overhead in the job and from outside (torch {torch.__version__})", box=None)
    for heading in ("malloc", "measured", "longer by", "95 % interval", "page faults", ""):
        table.add_column(heading, justify="left" if heading in ("malloc", "measured", "") else "right")
    for name, variables in MALLOCS:
        with _environment(variables), tempfile.TemporaryDirectory() as directory:
            pool = Pool(2)
            blocks = pool.run(measure, directory, timeout_seconds=900.0)
            controls = (PLAIN, BURNING, EMPTY) if not variables else (PLAIN,)
            in_job = {control: _in_job(pool, Path(directory) / control, control) for control in controls}
            pool.stop()
        _add_rows(table, name, blocks, in_job)
    console = Console(width=120)
    console.print(table)
    console.print(
        f"\nFrom outside: medians of {ROUNDS} blocks of {STEPS - SETTLING} steps, each divided "
        f"by the other block of its round. In the job: {WINDOWS} windows of {BLOCK_STEPS} steps. Page faults per step "
        f"and rank: bare, recorded. Load of the machine at the end {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.",
        highlight=False,
    )


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set variables for the processes that start inside. glibc reads them once, at the start of a process."""
    os.environ.update(variables)
    yield
    for variable in variables:
        del os.environ[variable]


# -- on every rank --------------------------------------------------------------------------------


class _Reduced(torch.autograd.Function):
    """The sum over the ranks in the forward (`in_forward`), or of the gradient in the backward."""

    @staticmethod
    def forward(context: torch.autograd.function.FunctionCtx, numbers: torch.Tensor, in_forward: bool) -> torch.Tensor:
        context.in_forward = in_forward  # type: ignore[attr-defined]
        numbers = numbers.clone()
        if in_forward:
            dist.all_reduce(numbers)
        return numbers

    @staticmethod
    def backward(context: torch.autograd.function.FunctionCtx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        gradient = gradient.clone()
        if not context.in_forward:  # type: ignore[attr-defined]
            dist.all_reduce(gradient)
        return gradient, None


def tensor_parallel() -> Callable[[], None]:
    """A hand-written loop: columns, then rows, of each layer's two products are on one rank."""
    torch.manual_seed(0)
    weights = [torch.randn(2, WIDTH, WIDTH).div(WIDTH).requires_grad_() for _ in range(LAYERS)]
    optimizer = torch.optim.SGD(weights, lr=1e-6)

    def step() -> None:
        numbers = torch.randn(BATCH, WIDTH)
        for columns, rows in weights:
            hidden = torch.relu(_Reduced.apply(numbers, False) @ columns)
            numbers = _Reduced.apply(hidden @ rows, True)
        loss = numbers.square().mean()
        loss.backward()
        dist.all_reduce(loss.detach())
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure(directory: str) -> list[Counted]:
    """All blocks of this rank, in the same order on every rank."""
    step = tensor_parallel()
    return list(
        in_turns(
            (BARE, LIGHT, RECORDED),
            rounds=ROUNDS,
            block=lambda kind, number: _block(kind, step, Path(directory) / f"{kind}-{number}"),
        )
    )


def _block(kind: str, step: Callable[[], None], directory: Path) -> Counted:
    seconds = []
    before = _used()
    with traincope.run(directory, **OBSERVED[kind]) if kind in OBSERVED else nullcontext():
        dist.barrier()
        for number in range(STEPS):
            if number == SETTLING:
                before = _used()
            started = time.perf_counter()
            step()
            traincope.step()
            seconds.append(time.perf_counter() - started)
        cpu_seconds, page_faults = (_used() - before) / (STEPS - SETTLING)
    return Counted(kind=kind, seconds=seconds[SETTLING:], cpu_seconds=cpu_seconds, page_faults=page_faults)


def _used() -> np.ndarray:
    """CPU seconds and minor page faults of this process and its ended children."""
    parts = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return np.array([[part.ru_utime + part.ru_stime, part.ru_minflt] for part in parts]).sum(axis=0)


def measure_itself(directory: str, control: str) -> None:
    """A run with one window in two blocks."""
    step, usual_halvings, usual_hooks = tensor_parallel(), sampling.needed_halvings, recording.make_hooks
    usual_first, sampling.FIRST_BLOCKS = sampling.FIRST_BLOCKS, 0
    sampling.needed_halvings = lambda *_, **__: 1
    if control == EMPTY:
        recording.make_hooks = lambda: tuple(hook for hook in usual_hooks() if hook.level < DETAIL_LEVEL)
    light = deque([_seconds(step) for _ in range(NEAR)], maxlen=NEAR)
    try:
        with traincope.run(directory, run_id="overhead", budget=0.5):
            for _ in range(2 * WINDOWS * BLOCK_STEPS):
                seconds, detailed = _seconds(step), recording._recording is not None and recording._recording.detailed
                if not detailed:
                    light.append(seconds)
                elif control == BURNING:
                    _burn(BURNED * float(np.median(light)))
                traincope.step()
    finally:
        sampling.needed_halvings, recording.make_hooks = usual_halvings, usual_hooks
        sampling.FIRST_BLOCKS = usual_first


def _seconds(step: Callable[[], None]) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def _burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


# -- the table --------------------------------------------------------------------------------------


def _in_job(pool: Pool, directory: Path, control: str) -> MeasuredOverhead | None:
    pool.run(measure_itself, str(directory), control, timeout_seconds=900.0)
    timeline = traincope.open_run(directory)
    return measured_in_job(timeline, traincope.analyze(timeline).ledger, own_ratio=None).measured_overhead


def _add_rows(table: Table, name: str, ranks: list[list[Counted]], in_job: dict[str, MeasuredOverhead | None]) -> None:
    """Add what was measured from outside, and each interval measured in the job with its verdict."""
    faults = ", ".join(f"{np.median(_each(ranks, kind, 'page_faults')):.0f}" for kind in (BARE, RECORDED))
    for kind, against in ((RECORDED, BARE), (LIGHT, BARE), (RECORDED, LIGHT)):
        times = ratios(step_seconds(ranks, kind), step_seconds(ranks, against)) - 1
        _add_row(table, name, f"step time, {kind} / {against}", float(np.median(times)), interval(times), faults=faults)
        cpu = _each(ranks, kind, "cpu_seconds") / _each(ranks, against, "cpu_seconds") - 1
        _add_row(table, "", f"CPU time, {kind} / {against}", float(np.median(cpu)), interval(cpu))
        name = faults = ""
    low, high = interval(times)  # everything recorded against level 0
    expected = {PLAIN: (low, high), BURNING: (low + BURNED, high + BURNED), EMPTY: (0.0, 0.0)}
    for control, overhead in in_job.items():
        if overhead is None:
            table.add_row("", f"in the job, {control}", "-", "-", "", "too few windows")
            continue
        low, high = expected[control]
        agrees = overhead.low <= high and low <= overhead.high and (control != BURNING or overhead.low > 0)
        verdict = f"{'agrees with' if agrees else 'MISSED:'} {100 * low:+.1f} .. {100 * high:+.1f} %"
        _add_row(table, "", f"in the job, {control}", overhead.estimate, (overhead.low, overhead.high), verdict=verdict)
    table.add_section()


def _each(ranks: list[list[Counted]], kind: str, field: str) -> np.ndarray:
    """(rounds,): mean over the ranks."""
    return np.mean([[getattr(block, field) for block in rank if block.kind == kind] for rank in ranks], axis=0)


def _add_row(
    table: Table,
    name: str,
    measured: str,
    ratio: float,
    bounds: tuple[float, float],
    *,
    faults: str = "",
    verdict: str = "",
) -> None:
    low, high = bounds
    table.add_row(name, measured, f"{100 * ratio:+.1f} %", f"{100 * low:+.1f} .. {100 * high:+.1f} %", faults, verdict)


if __name__ == "__main__":
    main()
