"""python -m evaluation.truth diff: pairs of real trainings, equal or with one injected change.

Equal trainings must show no significant change. An injected change must be the changed term, with its size on the
critical path.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from evaluation.truth.rows import Row
from evaluation.truth.trainings.what_if import NAMED, WITHIN, Effect, run
from evaluation.truth.trainings.workloads import MS, Workload
from tests.distributed.ranks.pool import Pool
from traincope.analysis import Judgement, diff

STEPS = 107
"""The first warms up. Fewer than 50 are not tested, and 56 too few where the noise of the machine lasts for seconds."""
EVEN = NAMED["ddp: even"]


class Injected(NamedTuple):
    """The injected difference of the second training."""

    workload: Workload
    term: str | None
    """None: no change."""
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
                print(f"{case.workload.name}: disturbed by other processes; run it on an idle machine", file=sys.stderr)
            yield from _rows(case, before, after)


def _rows(case: Injected, before: Effect, after: Effect) -> Iterator[Row]:
    result = diff(before.analysis, after.analysis)
    noise = f"{max(before.noise, after.noise):.2%}"
    judged = result.judgement.value
    if case.term is None:
        alike = result.judgement not in (Judgement.SLOWER, Judgement.FASTER)
        yield _row(case, "judgement", "not slower", judged, noise=noise, holds=alike)
        return
    yield _row(case, "judgement", "slower", judged, noise=noise, holds=result.judgement is Judgement.SLOWER)
    moved = max(result.terms, key=lambda term: term.path_change or 0.0)
    yield _row(case, "term on the path", case.term, moved.term, noise=noise, holds=moved.term == case.term)
    error = ((moved.path_change or 0.0) - case.ns) / before.step_ns
    size = f"{(moved.path_change or 0.0) / MS:.1f} ms"
    known = f"{case.ns / MS:.1f} ms"
    yield _row(case, "its change", known, size, noise=noise, holds=abs(error) <= WITHIN, error=error)


def _row(
    case: Injected, quantity: str, truth: str, measured: str, *, noise: str, holds: bool, error: float | None = None
) -> Row:
    return Row(
        part="diff",
        case=f"ddp: even, against {case.workload.name}",
        quantity=quantity,
        truth=truth,
        measured=measured,
        error="" if error is None else f"{error:+.2%}",
        noise=noise,
        of_step=error,
        holds=holds,
    )
