"""python -m tests.truth.bubble: what the bubble of real pipelines is, and what traincope says it is.

Every schedule in three sizes, with equal stages and with one that is a quarter slower, with the
gradients clipped and not. Errors are in points of the step that the known durations make; more than
one point is a failure. The last column is how much longer the machine made the step.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.distributed.pool import Pool
from tests.truth.sleeping import Case, Shares, added, measured, run, truth
from traincope.plan.orders import Shape

SCHEDULES = ("naive", "gpipe", "1f1b", "interleaved", "zb-1p", "zb-v")
CHUNKS = {"interleaved": 2, "zb-v": 2}
SIZES = ((2, 4), (4, 8), (4, 16))
WITHIN_POINTS = 1.0


def cases() -> Iterator[Case]:
    for (ranks, microbatches), schedule, slow, clips in product(SIZES, SCHEDULES, (False, True), (False, True)):
        shape = Shape(ranks=ranks, microbatches=microbatches, chunks=CHUNKS.get(schedule, 1))
        yield Case(schedule=schedule, shape=shape, slow_stage=shape.stages // 2 if slow else None, clips=clips)


def main() -> int:
    os.environ["OMP_NUM_THREADS"] = "1"
    pools = {ranks: Pool(ranks) for ranks in sorted({ranks for ranks, _ in SIZES})}
    rows = Table(title="Bubble in % of a step: truth | measured | error in points")
    for head in (
        "schedule",
        "P",
        "M",
        "slow stage",
        "clips",
        "schedule's",
        "imbalance's",
        "both, without jitter",
        "added",
    ):
        rows.add_column(head, justify="left" if head == "schedule" else "right", no_wrap=True)
    worst = 0.0
    with tempfile.TemporaryDirectory() as directory:
        for number, case in enumerate(cases()):
            expected = truth(case)
            analysis = run(pools[case.shape.ranks], case, Path(directory, str(number)))
            found = measured(analysis, case)
            worst = max(worst, _largest_error(expected, found))
            cells = (*_named(case), *_compared(expected, found), f"{100 * added(analysis, case):.1f}")
            rows.add_row(*cells)
            print(f"{number + 1}:", "  ".join(cells), file=sys.stderr, flush=True)
    for pool in pools.values():
        pool.stop()
    Console(width=140).print(rows)
    print(f"largest error {worst:.2f} points, {WITHIN_POINTS:g} allowed")
    return int(worst > WITHIN_POINTS)


def _named(case: Case) -> tuple[str, ...]:
    slow = "-" if case.slow_stage is None else str(case.slow_stage)
    clips = "yes" if case.clips else "no"
    return case.schedule, str(case.shape.ranks), str(case.shape.microbatches), slow, clips


def _pairs(expected: Shares, found: Shares) -> tuple[tuple[float, float], ...]:
    return (
        (expected.schedule, found.schedule),
        (expected.imbalance, found.imbalance),
        (expected.both, found.both),
    )


def _compared(expected: Shares, found: Shares) -> list[str]:
    return [f"{100 * was:.2f} | {100 * says:.2f} | {100 * (says - was):+.2f}" for was, says in _pairs(expected, found)]


def _largest_error(expected: Shares, found: Shares) -> float:
    return max(100 * abs(says - was) for was, says in _pairs(expected, found))


if __name__ == "__main__":
    sys.exit(main())
