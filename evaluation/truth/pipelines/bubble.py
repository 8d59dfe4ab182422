"""python -m evaluation.truth.pipelines.bubble: the known bubble of real pipelines, and traincope's result.

Every schedule in three sizes, with equal stages and with one stage that is a quarter slower; with and without clipped
gradients; with a ring of two ranks in every stage, like context parallelism; with one late forward in every step, which
is jitter; and, if the schedule splits backward, with F, I and W of unequal times. Errors are in percentage points of
the step of known durations. An error above one point is a failure, and so is a message on another axis than it was sent
on. The waits in the rings are known from the ranks' own clocks. Jitter, and the whole bubble, must lie between two
bounds: none, or all, of the time that the machine added to the step was idle. `added` is the time that the machine
added to the step, `late` how often a background sleeper woke late. A row is measured again if that is often,
independent of its result.

Words after the command choose rows by their first columns: `python -m evaluation.truth.pipelines.bubble zb-v 4 8`. On a
busy machine, root can give the ranks' short work precedence: `chrt -f 10 python -m ...`.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from evaluation.truth.pipelines.cases import Case, sent
from evaluation.truth.pipelines.lateness import DISTURBED
from evaluation.truth.pipelines.measuring import Measurement, measure
from tests.distributed.ranks.pool import Pool
from traincope.plan.pipeline.actions import Times
from traincope.plan.pipeline.orders import SCHEDULES, Shape

SIZES = ((2, 4), (4, 8), (4, 16))
KINDS: tuple[dict[str, Any], ...] = ({}, {"clips": True}, {"ring": 2}, {"late": 2.0})
UNEQUAL: dict[str, Any] = {"times": Times(forward=1.0, backward_input=1.5, backward_weight=0.75)}
"""I takes longest, as attention's backward makes it; W is short, so that it fills less of the idle time."""
WITHIN_POINTS = 1.0
COLUMNS = (
    *("schedule", "P", "M", "slow", "clips", "ring", "late by", "F, I, W"),
    *("schedule's", "imbalance's", "both", "waits in the ring", "jitter's", "whole bubble, of the real step"),
    *("added", "late"),
)


def cases() -> Iterator[Case]:
    for (ranks, microbatches), (name, schedule), slow in product(SIZES, SCHEDULES.items(), (False, True)):
        shape = Shape(ranks=ranks, microbatches=microbatches, chunks=schedule.min_chunks)
        for kind in (*KINDS, *([UNEQUAL] if schedule.splits_backward else [])):
            yield Case(schedule=name, shape=shape, slow_stage=shape.stages // 2 if slow else None, **kind)


def main(words: list[str]) -> int:
    os.environ["OMP_NUM_THREADS"] = "1"
    chosen = [case for case in cases() if _labels(case)[: len(words)] == tuple(words)]
    rows = Table(title="Bubble in % of a step: truth | measured | error in percentage points", box=None)
    for head in COLUMNS:
        rows.add_column(head, justify="left" if head == "schedule" else "right", no_wrap=True)
    worst, failed, disturbed = 0.0, 0, 0
    pool = Pool(0)
    with tempfile.TemporaryDirectory() as directory:
        for number, case in enumerate(sorted(chosen, key=lambda case: case.ranks)):
            if pool.size != case.ranks:
                pool.stop()
                pool = Pool(case.ranks)
            result = measure(pool, case, Path(directory, str(number)))
            error = _largest_error(result)
            worst = max(worst, error)
            failed += error > WITHIN_POINTS or result.sent != sent(case)
            disturbed += result.late_ratio > DISTURBED
            cells = *_labels(case), *_compared(result), f"{100 * result.added:.1f}", f"{100 * result.late_ratio:.0f}"
            rows.add_row(*cells)
            print(f"{number + 1} of {len(chosen)}:", "  ".join(cells), file=sys.stderr, flush=True)
    pool.stop()
    Console(width=200).print(rows)
    noise = f"; {disturbed} on a disturbed machine: run them on an idle one" if disturbed else ""
    result = f"off by {worst:.2f} points of the step at most, {WITHIN_POINTS:g} allowed"
    print(f"{len(chosen)} pipelines; {result}{noise}; {failed} missed")
    return int(failed > 0 or not chosen)


def _labels(case: Case) -> tuple[str, ...]:
    slow = "-" if case.slow_stage is None else str(case.slow_stage)
    clips = "yes" if case.clips else "no"
    late = f"{case.late:g}" if case.late else "-"
    times = ", ".join(f"{case.times.duration(kind):g}" for kind in "FIW")
    return case.schedule, str(case.shape.ranks), str(case.shape.microbatches), slow, clips, str(case.ring), late, times


def _pairs(result: Measurement) -> tuple[tuple[float, float], ...]:
    """Pairs of truth and measurement."""
    expected, shares = result.truth, result.shares
    bubble = (expected.schedule, shares.schedule), (expected.imbalance, shares.imbalance), (expected.both, shares.both)
    return (*bubble, result.ring)


def _compared(result: Measurement) -> list[str]:
    cells = [
        f"{100 * known:.2f} | {100 * measured:.2f} | {100 * (measured - known):+.2f}"
        for known, measured in _pairs(result)
    ]
    wrong = "" if result.sent == sent(result.case) else f" {result.sent} != {sent(result.case)}"
    least, most = result.known_fraction
    whole = f"{100 * least:.2f}-{100 * most:.2f} | {100 * result.fraction:.2f} | {100 * _outside(result):+.2f}"
    known, jitter = result.truth.jitter, result.shares.jitter
    late = (
        f"{100 * known:.2f}-{100 * (known + result.added):.2f} | {100 * jitter:.2f} | {100 * result.beyond_known:+.2f}"
    )
    return [*cells[:-1], (cells[-1] if result.case.ring > 1 else "-") + wrong, late, whole]


def _largest_error(result: Measurement) -> float:
    """Largest error in percentage points."""
    beyond = abs(_outside(result)), abs(result.beyond_known)
    return 100 * max(*beyond, *(abs(measured - known) for known, measured in _pairs(result)))


def _outside(result: Measurement) -> float:
    """Distance of the whole bubble from its known range."""
    least, most = result.known_fraction
    return min(result.fraction - least, 0.0) + max(result.fraction - most, 0.0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
