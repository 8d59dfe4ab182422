"""python -m tests.truth.bubble: what the bubble of real pipelines is, and what traincope says it is.

Every schedule in three sizes, with equal stages and with one that is a quarter slower; with the gradients clipped, not
clipped, with a ring of two ranks in every stage, as context parallelism has, and with one forward of every step late:
that is jitter. Errors are in points of the step that
the known durations make; more than one point is a failure, and so is a message on another axis than it was sent on.
What the rings waited is known by the ranks' own watches. Jitter, and the whole bubble, must lie between what they are
if nothing, and if all of what the machine added to the step stood still.
`added` is how much longer the machine made the step, `late` how often a sleeper beside the pipeline woke late: a row
is measured again where that is often, never for what was found.

Words after the command choose rows by what stands in their first columns: `python -m tests.truth.bubble zb-v 4 8`.
Where others use the machine, root can give the ranks' few instants of work precedence: `chrt -f 10 python -m ...`.
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

from tests.distributed.pool import Pool
from tests.truth.cases import Case, sent, truth
from tests.truth.lateness import DISTURBED
from tests.truth.measuring import Measurement, measure
from traincope.plan.orders import Shape

SCHEDULES = ("naive", "gpipe", "1f1b", "interleaved", "zb-1p", "zb-v")
CHUNKS = {"interleaved": 2, "zb-v": 2}
SIZES = ((2, 4), (4, 8), (4, 16))
KINDS: tuple[dict[str, Any], ...] = ({}, {"clips": True}, {"ring": 2}, {"late": 2.0})
WITHIN_POINTS = 1.0
COLUMNS = (
    *("schedule", "P", "M", "slow", "clips", "ring", "late by"),
    *("schedule's", "imbalance's", "both", "waits in the ring", "jitter's", "whole, of the real step"),
    *("added", "late"),
)


def cases() -> Iterator[Case]:
    for (ranks, microbatches), schedule, slow, kind in product(SIZES, SCHEDULES, (False, True), KINDS):
        shape = Shape(ranks=ranks, microbatches=microbatches, chunks=CHUNKS.get(schedule, 1))
        yield Case(schedule=schedule, shape=shape, slow_stage=shape.stages // 2 if slow else None, **kind)


def main(words: list[str]) -> int:
    os.environ["OMP_NUM_THREADS"] = "1"
    chosen = [case for case in cases() if _named(case)[: len(words)] == tuple(words)]
    rows = Table(title="Bubble in % of a step: truth | measured | error in points", box=None)
    for head in COLUMNS:
        rows.add_column(head, justify="left" if head == "schedule" else "right", no_wrap=True)
    worst, failed, disturbed = 0.0, 0, 0
    pool = Pool(0)
    with tempfile.TemporaryDirectory() as directory:
        for number, case in enumerate(sorted(chosen, key=lambda case: case.ranks)):
            if pool.size != case.ranks:
                pool.stop()
                pool = Pool(case.ranks)
            found = measure(pool, case, Path(directory, str(number)))
            error = _largest_error(found)
            worst = max(worst, error)
            failed += error > WITHIN_POINTS or found.sent != sent(case)
            disturbed += found.late_ratio > DISTURBED
            cells = *_named(case), *_compared(found), f"{100 * found.added:.1f}", f"{100 * found.late_ratio:.0f}"
            rows.add_row(*cells)
            print(f"{number + 1} of {len(chosen)}:", "  ".join(cells), file=sys.stderr, flush=True)
    pool.stop()
    Console(width=200).print(rows)
    noise = f"; {disturbed} on a disturbed machine: run them where nothing else runs" if disturbed else ""
    found = f"off by {worst:.2f} points of the step at most, {WITHIN_POINTS:g} allowed"
    print(f"{len(chosen)} pipelines; {found}{noise}; {failed} missed")
    return int(failed > 0)


def _named(case: Case) -> tuple[str, ...]:
    slow = "-" if case.slow_stage is None else str(case.slow_stage)
    clips = "yes" if case.clips else "no"
    late = f"{case.late:g}" if case.late else "-"
    return case.schedule, str(case.shape.ranks), str(case.shape.microbatches), slow, clips, str(case.ring), late


def _pairs(found: Measurement) -> tuple[tuple[float, float], ...]:
    """Truth and what was measured."""
    expected, shares = truth(found.case), found.shares
    bubble = (expected.schedule, shares.schedule), (expected.imbalance, shares.imbalance), (expected.both, shares.both)
    return (*bubble, found.ring)


def _compared(found: Measurement) -> list[str]:
    told = [f"{100 * was:.2f} | {100 * says:.2f} | {100 * (says - was):+.2f}" for was, says in _pairs(found)]
    wrong = "" if found.sent == sent(found.case) else f" {found.sent} != {sent(found.case)}"
    least, most = found.known_fraction
    whole = f"{100 * least:.2f}-{100 * most:.2f} | {100 * found.fraction:.2f} | {100 * _outside(found):+.2f}"
    known, jitter = truth(found.case).jitter, found.shares.jitter
    late = f"{100 * known:.2f}-{100 * (known + found.added):.2f} | {100 * jitter:.2f} | {100 * found.beyond_known:+.2f}"
    return [*told[:-1], (told[-1] if found.case.ring > 1 else "-") + wrong, late, whole]


def _largest_error(found: Measurement) -> float:
    """In points."""
    beyond = abs(_outside(found)), abs(found.beyond_known)
    return 100 * max(*beyond, *(abs(says - was) for was, says in _pairs(found)))


def _outside(found: Measurement) -> float:
    """By how much the whole bubble is below or above what is known of it."""
    least, most = found.known_fraction
    return min(found.fraction - least, 0.0) + max(found.fraction - most, 0.0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
