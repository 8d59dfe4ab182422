"""python -m tests.truth diff: real trainings, alike or one with something put into it, against each other.

Alike ones must show no change to act on; what was put in must be the term that moved, in its size on the critical path.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from tests.distributed.pool import Pool
from tests.truth.rows import Row
from tests.truth.what_if import NAMED, WITHIN, Found, run
from tests.truth.workloads import MS, Workload
from traincope.analysis import Judgement, diff

STEPS = 9
"""8 count: of fewer than 5 nothing would be said."""
EVEN = NAMED["ddp: even"]


class Injected(NamedTuple):
    """What the second training has and the first has not."""

    workload: Workload
    term: str | None
    """None: nothing."""
    ns: int


CASES = (
    Injected(EVEN, None, 0),
    Injected(NAMED["ddp: slow loaders"], "data_wait", 80 * MS),
    Injected(NAMED["ddp: rank 1 late"], "unattributed", 80 * MS),
    Injected(NAMED["ddp: rank 1 slow"], "backward", 80 * MS),
    Injected(NAMED["ddp: slow link"], "exposed_transfer[dp]", 60 * MS),
)


def diff_rows() -> Iterator[Row]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pool = Pool(EVEN.ranks)
        stack.callback(pool.stop)
        before = run(pool, EVEN, directory / "even", steps=STEPS)
        for number, case in enumerate(CASES):
            after = run(pool, case.workload, directory / str(number), steps=STEPS)
            if before.disturbed or after.disturbed:
                print(f"{case.workload.name}: others disturbed it; run it where nothing else runs", file=sys.stderr)
            yield from _rows(case, before, after)


def _rows(case: Injected, before: Found, after: Found) -> Iterator[Row]:
    found = diff(before.analysis, after.analysis)
    noise = f"{max(before.noise, after.noise):.2%}"
    judged = found.judgement.value
    if case.term is None:
        alike = found.judgement not in (Judgement.SLOWER, Judgement.FASTER)
        yield _row(case, "judgement", "not slower", judged, noise=noise, holds=alike)
        return
    yield _row(case, "judgement", "slower", judged, noise=noise, holds=found.judgement is Judgement.SLOWER)
    moved = max(found.terms, key=lambda term: term.path_change or 0.0)
    yield _row(case, "term on the path", case.term, moved.term, noise=noise, holds=moved.term == case.term)
    error = ((moved.path_change or 0.0) - case.ns) / before.step_ns
    size = f"{(moved.path_change or 0.0) / MS:.1f} ms"
    known = f"{case.ns / MS:.1f} ms"
    yield _row(case, "its change", known, size, noise=noise, holds=abs(error) <= WITHIN, error=error)


def _row(
    case: Injected, what: str, truth: str, measured: str, *, noise: str, holds: bool, error: float | None = None
) -> Row:
    return Row(
        part="diff",
        case=f"ddp: even, against {case.workload.name}",
        what=what,
        truth=truth,
        measured=measured,
        error="" if error is None else f"{error:+.2%}",
        noise=noise,
        of_step=error,
        holds=holds,
    )
