"""Workloads as what a perfect recorder would write of them, times worked out on paper."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from tests.timeline.build import Row, collective, group, phase, rank, stall, step, timeline
from tests.truth.playing import Moved, moves
from tests.truth.workloads import MS, SLOW_LINKS, Begin, Finish, Work, Workload
from traincope.analysis.terms import PHASE_TERMS, UNATTRIBUTED
from traincope.events import Flag
from traincope.store import RankRecords
from traincope.timeline import Timeline

PHASE_OF = {term: of for of, term in PHASE_TERMS.items()}


def wired(workload: Workload) -> Workload:
    """The same, its links as slow as a ms where they took no time."""
    return replace(workload, links_ns={**dict.fromkeys(SLOW_LINKS[workload.parallel], MS), **workload.links_ns})


def recorded(workload: Workload, *, steps: int) -> Timeline:
    """All ranks on one host; the first step is warm-up."""
    return timeline(*(_rank(workload, number, moved) for number, moved in enumerate(moves(workload, steps=steps))))


def _rank(workload: Workload, number: int, moved: list[Moved]) -> RankRecords:
    groups = [group(axis, *workload.members(axis, number)) for axis in workload.axes]
    rows = sorted([*_steps(moved), *_rows(workload, moved)], key=lambda row: (row.start_ns, -row.end_ns))
    return rank(number, *rows, groups=groups)


def _steps(moved: list[Moved]) -> Iterator[Row]:
    for number in sorted({one.step for one in moved}):
        of = [one for one in moved if one.step == number]
        yield step(number, of[0].began_ns, of[-1].ended_ns)


def _rows(workload: Workload, moved: list[Moved]) -> Iterator[Row]:
    """A collective that nobody stands still for is seen to be over at the end of its step. Wires carry a byte a ns."""
    begun: dict[str, int] = defaultdict(int)
    for one in moved:
        if isinstance(one.move, Work) and one.move.ns and one.move.term != UNATTRIBUTED:
            yield phase(PHASE_OF[one.move.term], one.began_ns, one.ended_ns, at=one.step)
        elif isinstance(one.move, Begin):
            yield from _collective(workload, one, moved, sequence=begun[one.move.axis])
            begun[one.move.axis] += 1


def _collective(workload: Workload, one: Moved, moved: list[Moved], *, sequence: int) -> Iterator[Row]:
    """To be found when it has come takes a ns. A wire that takes no time is none of this."""
    assert isinstance(one.move, Begin)
    finish = Finish(one.move.axis, one.move.name)
    ended = next((other for other in moved if (other.step, other.move) == (one.step, finish)), None)
    last = max(other.ended_ns for other in moved if other.step == one.step)
    stood_ns = None if ended is None else min(ended.began_ns, ended.ended_ns - 1)
    call = collective(
        one.began_ns,
        last if ended is None else ended.ended_ns,
        name=one.move.name.split()[0],
        group=workload.axes.index(one.move.axis),
        sequence=sequence,
        at=one.step,
        num_bytes=one.move.link_ns,
        flags=0 if ended is not None and ended.began_ns < ended.ended_ns else Flag.DONE_BEFORE_WAIT,
    )
    yield call
    if ended is not None and stood_ns is not None:
        yield stall(call, stood_ns, ended.ended_ns)
