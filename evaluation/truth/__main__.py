"""python -m evaluation.truth [PART ...]: known truth and traincope's result in one table.

    workloads   real gloo trainings of known compute, lateness, links, loaders, checkpoints (`trainings/workloads.py`)
    bubble      some of the pipelines of `python -m evaluation.truth.pipelines.bubble`
    clocks      simulated runs of several hosts, `python -m evaluation.truth.machines.clocks`
    published   numbers from papers, `python -m evaluation.truth.formulas.published`
    flops       FLOPs counted in some layouts of `python -m evaluation.truth.formulas.flops`
    what-if     predictions, compared with the changed trainings (`trainings/what_if.py`)
    predicted   gains of eight changes, predicted from one training, then made (`trainings/predicted.py`)
    gains       gains that the verdict states, then made by removing the cause (`trainings/gains.py`)
    diff        two trainings, equal or with one injected change (`trainings/diff.py`)

Without a name it runs all parts. An error of time is a share of a step, and so is `noise`, the machine's own
(`trainings/weighing.py`). Exits with 1 if a row misses. On a busy machine, root can give the ranks' short work
precedence: `chrt -f 10 python -m evaluation.truth`.
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

from benchmarks.judging import NOT_SHOWN_EXIT
from evaluation.truth.formulas import flops, published
from evaluation.truth.machines import clocks
from evaluation.truth.machines.hosts import make_trial
from evaluation.truth.pipelines import bubble
from evaluation.truth.pipelines.cases import Case
from evaluation.truth.pipelines.measuring import Measurement, measure
from evaluation.truth.rows import Row
from evaluation.truth.trainings.diff import diff_rows
from evaluation.truth.trainings.gains import gain_rows
from evaluation.truth.trainings.predicted import predicted_rows
from evaluation.truth.trainings.weighing import measure_workload
from evaluation.truth.trainings.what_if import what_if_rows
from evaluation.truth.trainings.workloads import WORKLOADS
from tests.distributed.ranks.pool import Pool
from traincope.plan.pipeline.actions import EQUAL
from traincope.plan.pipeline.orders import Shape

STEPS = 24
MISSED = "MISSED"
WIDTHS = {"part": 9, "case": 38, "what": 38, "truth": 27, "measured": 27, "error": 9, "noise": 6, "": len(MISSED)}
"""Column of the table -> its largest width. Together they fit, so that the last one is never cut off."""


def workload_rows() -> Iterator[Row]:
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        pools = {ranks: Pool(ranks) for ranks in {workload.ranks for workload in WORKLOADS}}
        for pool in pools.values():
            stack.callback(pool.stop)
        for workload in WORKLOADS:
            weighed = measure_workload(pools[workload.ranks], workload, Path(directory, workload.name), steps=STEPS)
            if weighed.disturbed:
                yield _disturbed_row(workload.name, weighed.noise)
            yield from weighed.rows()


def _disturbed_row(workload: str, noise: float) -> Row:
    """A row without a judgement."""
    return Row(
        part="workloads",
        case=workload,
        quantity="times",
        truth="",
        measured="not shown: run it on an idle machine",
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
    Case(schedule="zb-v", shape=Shape(ranks=2, microbatches=4, chunks=2), **bubble.UNEQUAL),
    Case(schedule="dualpipev", shape=Shape(ranks=2, microbatches=4, chunks=2), **bubble.UNEQUAL),
    Case(schedule="dualpipev", shape=Shape(ranks=2, microbatches=4, chunks=2), slow_stage=2, **bubble.UNEQUAL),
)


def bubble_rows() -> Iterator[Row]:
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        pool = Pool(2)
        stack.callback(pool.stop)
        for number, case in enumerate(PIPELINES):
            yield from _pipeline_rows(case, measure(pool, case, Path(directory, str(number))))


def _pipeline_rows(case: Case, measurement: Measurement) -> Iterator[Row]:
    expected, shares = measurement.truth, measurement.shares
    slow = "even" if case.slow_stage is None else f"slow stage {case.slow_stage}"
    unequal = "" if case.times == EQUAL else ", unequal F, I, W"
    name = f"{case.schedule}, {slow}{unequal}{', slow link' if case.link else ''}"
    for quantity, known, measured in (
        ("schedule", expected.schedule, shares.schedule),
        ("imbalance", expected.imbalance, shares.imbalance),
        ("transfer", expected.transfer, shares.transfer),
    ):
        yield Row(
            part="bubble",
            case=name,
            quantity=quantity,
            truth=f"{known:.2%}",
            measured=f"{measured:.2%}",
            error=f"{measured - known:+.2%}",
            of_step=measured - known,
            noise=f"{measurement.late_ratio:.0%} late",
            holds=100 * abs(measured - known) <= bubble.WITHIN_POINTS,
        )
    named = ", ".join(f"rank {outcome.rank}" for outcome in measurement.analysis.stragglers.named) or "none"
    yield Row(part="bubble", case=name, quantity="straggler", truth="none", measured=named, holds=named == "none")


def clock_rows() -> Iterator[Row]:
    for seed in range(clocks.TRIALS):
        trial = make_trial(seed)
        worst = max(clocks.outcomes(trial), key=lambda outcome: outcome.share)
        bound = "unknown" if worst.bound_ns is None else f"{worst.bound_ns / 1e3:.1f} us"
        yield Row(
            part="clocks",
            case=f"run {seed}, {len(trial.clocks)} hosts",
            quantity=f"behind, within {bound}",
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
            quantity=row.quantity,
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
            quantity=row.quantity,
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
    "predicted": predicted_rows,
    "gains": gain_rows,
    "diff": diff_rows,
}


def main(names: list[str]) -> int:
    os.environ["OMP_NUM_THREADS"] = "1"
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        print(f"there is no part {', '.join(unknown)}; choose from {', '.join(PARTS)}", file=sys.stderr)
        return 2
    table = Table(title="truth | measured | error | noise", box=None)
    for head, max_width in WIDTHS.items():
        justify = "left" if head in ("part", "case", "what") else "right"
        table.add_column(head, justify=justify, no_wrap=True, max_width=max_width)
    missed, number, unweighed, largest = 0, 0, 0, 0.0
    for name in names or PARTS:
        print(name, file=sys.stderr, flush=True)
        for row in PARTS[name]():
            number, missed, unweighed = number + row.weighed, missed + (not row.holds), unweighed + (not row.weighed)
            largest = max(largest, abs(row.of_step or 0))
            judged = "" if row.holds else MISSED
            cells = row.part, row.case, row.quantity, row.truth, row.measured, row.error, row.noise, judged
            table.add_row(*map(escape, cells), style=None if row.holds else "bold red")
    Console(width=sum(WIDTHS.values()) + 2 * len(WIDTHS)).print(table)
    noise = f"; {unweighed} times not shown because of the machine's noise" if unweighed else ""
    print(f"{number} rows; times off by {largest:.2%} of the step at most{noise}; {missed} missed")
    return 1 if missed or not number else NOT_SHOWN_EXIT if unweighed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
