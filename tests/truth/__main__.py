"""python -m tests.truth [PART ...]: what is true, beside what traincope says of it, in one table.

    workloads   real gloo trainings of known compute, lateness, links, loaders, checkpoints (`workloads.py`)
    bubble      some of the pipelines of `python -m tests.truth.bubble`
    clocks      made runs of several hosts, `python -m tests.truth.clocks`
    published   numbers that papers print, `python -m tests.truth.published`
    flops       FLOPs counted in some layouts of `python -m tests.truth.flops`
    what-if     predictions, and what the changed trainings really take (`what_if.py`)
    diff        two trainings, alike or one with something put into it (`diff.py`)

All parts without a name. An error of time is a share of a step, and so is `noise`, the machine's own (`weighing.py`).
Exits with 1 when a row misses. Where others use the machine, root can give the ranks' few instants of work precedence:
`chrt -f 10 python -m tests.truth`.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.distributed.pool import Pool
from tests.truth import bubble, clocks, flops, published
from tests.truth.cases import Case, truth
from tests.truth.diff import diff_rows
from tests.truth.hosts import make_trial
from tests.truth.measuring import Measurement, measure
from tests.truth.rows import Row
from tests.truth.weighing import weigh
from tests.truth.what_if import what_if_rows
from tests.truth.workloads import WORKLOADS
from traincope.plan.orders import Shape

STEPS = 6


def workload_rows() -> Iterator[Row]:
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        pools = {ranks: Pool(ranks) for ranks in {workload.ranks for workload in WORKLOADS}}
        for pool in pools.values():
            stack.callback(pool.stop)
        for workload in WORKLOADS:
            weighed = weigh(pools[workload.ranks], workload, Path(directory, workload.name), steps=STEPS)
            if weighed.disturbed:
                yield _unweighed(workload.name, weighed.noise)
            yield from weighed.rows()


def _unweighed(workload: str, noise: float) -> Row:
    """A row that neither holds nor misses."""
    return Row(
        part="workloads",
        case=workload,
        what="times",
        truth="",
        measured="not weighed: run it where nothing else runs",
        noise=f"{noise:.0%}",
        weighed=False,
        holds=True,
    )


PIPELINES = (
    Case(schedule="1f1b", shape=Shape(ranks=2, microbatches=4)),
    Case(schedule="1f1b", shape=Shape(ranks=2, microbatches=4), link=0.5),
    Case(schedule="zb-1p", shape=Shape(ranks=2, microbatches=4), slow_stage=1),
    Case(schedule="zb-1p", shape=Shape(ranks=2, microbatches=4), slow_stage=1, link=0.5),
    Case(schedule="interleaved", shape=Shape(ranks=2, microbatches=4, chunks=2), clips=True),
)


def bubble_rows() -> Iterator[Row]:
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        pool = Pool(2)
        stack.callback(pool.stop)
        for number, case in enumerate(PIPELINES):
            yield from _pipeline_rows(case, measure(pool, case, Path(directory, str(number))))


def _pipeline_rows(case: Case, found: Measurement) -> Iterator[Row]:
    expected, shares = truth(case), found.shares
    slow = "even" if case.slow_stage is None else f"slow stage {case.slow_stage}"
    name = f"{case.schedule}, {slow}{', slow link' if case.link else ''}"
    for what, was, says in (
        ("schedule", expected.schedule, shares.schedule),
        ("imbalance", expected.imbalance, shares.imbalance),
        ("transfer", expected.transfer, shares.transfer),
    ):
        yield Row(
            part="bubble",
            case=name,
            what=what,
            truth=f"{was:.2%}",
            measured=f"{says:.2%}",
            error=f"{says - was:+.2%}",
            of_step=says - was,
            noise=f"{found.late_ratio:.0%} late",
            holds=100 * abs(says - was) <= bubble.WITHIN_POINTS,
        )
    named = ", ".join(f"rank {one.rank}" for one in found.analysis.stragglers.named) or "none"
    yield Row(part="bubble", case=name, what="straggler", truth="none", measured=named, holds=named == "none")


def clock_rows() -> Iterator[Row]:
    for seed in range(clocks.TRIALS):
        trial = make_trial(seed)
        worst = max(clocks.outcomes(trial), key=lambda one: one.share)
        bound = "unknown" if worst.bound_ns is None else f"{worst.bound_ns / 1e3:.1f} us"
        yield Row(
            part="clocks",
            case=f"run {seed}, {len(trial.clocks)} hosts",
            what=f"behind, within {bound}",
            truth=f"{worst.truth_ns / 1e9:.6f} s",
            measured=f"{worst.measured_ns / 1e9:.6f} s",
            error=f"{worst.error_ns / 1e3:.1f} us",
            holds=worst.share <= 1 and worst.bound_ns is not None,
        )


def published_rows() -> Iterator[Row]:
    for row in published.rows():
        yield Row(
            part="published",
            case=row.source,
            what=row.what,
            truth=f"{row.truth:g}",
            measured=f"{row.computed:.4g}",
            error=f"{row.error:+.2g}",
            holds=row.holds,
        )


def flops_rows() -> Iterator[Row]:
    for row in flops.measured_rows(flops.TWO_RANKS):
        yield Row(
            part="flops",
            case=row.layout,
            what=row.what,
            truth=f"{row.truth:,.0f}",
            measured=f"{row.measured:,.0f}",
            error=f"{row.error:+.2%}",
            holds=row.holds,
        )


PARTS: Mapping[str, Callable[[], Iterator[Row]]] = {
    "workloads": workload_rows,
    "bubble": bubble_rows,
    "clocks": clock_rows,
    "published": published_rows,
    "flops": flops_rows,
    "what-if": what_if_rows,
    "diff": diff_rows,
}


def main(names: list[str]) -> int:
    os.environ["OMP_NUM_THREADS"] = "1"
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        print(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    table = Table(title="truth | measured | error | noise", box=None)
    for head in ("part", "case", "what", "truth", "measured", "error", "noise"):
        table.add_column(head, justify="left" if head in ("part", "case", "what") else "right", no_wrap=True)
    missed, number, unweighed, largest = 0, 0, 0, 0.0
    for name in names or PARTS:
        print(name, file=sys.stderr, flush=True)
        for row in PARTS[name]():
            number, missed, unweighed = number + row.weighed, missed + (not row.holds), unweighed + (not row.weighed)
            largest = max(largest, abs(row.of_step or 0))
            cells = row.part, row.case, row.what, row.truth, row.measured, row.error, row.noise
            table.add_row(*map(escape, cells), style=None if row.holds else "bold red")
    Console(width=160).print(table)
    noise = f"; times of {unweighed} not weighed for the machine's noise" if unweighed else ""
    print(f"{number} rows; times off by {largest:.2%} of the step at most{noise}; {missed} missed")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
