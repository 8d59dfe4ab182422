"""Workloads as records of a perfect recorder, with computed times."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from evaluation.truth.trainings.playing import TimedMove, moves
from evaluation.truth.trainings.workloads import MS, SLOW_LINKS, Begin, Finish, Work, Workload
from tests.timeline.build import Row, collective, group, phase, rank, stall, step, timeline
from traincope.analysis.attribution.terms import PHASE_TERMS, UNATTRIBUTED
from traincope.events import Flag
from traincope.store import RankRecords
from traincope.timeline import Timeline

PHASE_OF = {term: phase for phase, term in PHASE_TERMS.items()}


def wired(workload: Workload) -> Workload:
    """The same workload with slow links: 1 ms where they took no time."""
    return replace(workload, links_ns={**dict.fromkeys(SLOW_LINKS[workload.parallel], MS), **workload.links_ns})


def recorded(workload: Workload, *, steps: int) -> Timeline:
    """Timeline of all ranks on one host; the first step is warm-up."""
    return timeline(
        *(_rank(workload, number, timed_moves) for number, timed_moves in enumerate(moves(workload, steps=steps)))
    )


def _rank(workload: Workload, number: int, timed_moves: list[TimedMove]) -> RankRecords:
    groups = [group(axis, *workload.members(axis, number)) for axis in workload.axes]
    rows = sorted([*_steps(timed_moves), *_rows(workload, timed_moves)], key=lambda row: (row.start_ns, -row.end_ns))
    return rank(number, *rows, groups=groups)


def _steps(timed_moves: list[TimedMove]) -> Iterator[Row]:
    for number in sorted({timed.step for timed in timed_moves}):
        phase = [timed for timed in timed_moves if timed.step == number]
        yield step(number, phase[0].began_ns, phase[-1].ended_ns)


def _rows(workload: Workload, timed_moves: list[TimedMove]) -> Iterator[Row]:
    """Records of a rank. A collective without a stall is seen to end with its step. Wires carry one byte per ns."""
    begun: dict[str, int] = defaultdict(int)
    for timed in timed_moves:
        if isinstance(timed.move, Work) and timed.move.ns and timed.move.term != UNATTRIBUTED:
            yield phase(PHASE_OF[timed.move.term], timed.began_ns, timed.ended_ns, at=timed.step)
        elif isinstance(timed.move, Begin):
            yield from _collective(workload, timed, timed_moves, sequence=begun[timed.move.axis])
            begun[timed.move.axis] += 1


def _collective(workload: Workload, timed: TimedMove, timed_moves: list[TimedMove], *, sequence: int) -> Iterator[Row]:
    """Records of a collective. Finding it complete takes 1 ns. Workloads without wire time are not supported."""
    assert isinstance(timed.move, Begin)
    finish = Finish(timed.move.axis, timed.move.name)
    ended = next((other for other in timed_moves if (other.step, other.move) == (timed.step, finish)), None)
    last = max(other.ended_ns for other in timed_moves if other.step == timed.step)
    stood_ns = None if ended is None else min(ended.began_ns, ended.ended_ns - 1)
    call = collective(
        timed.began_ns,
        last if ended is None else ended.ended_ns,
        name=timed.move.name.split()[0],
        group=workload.axes.index(timed.move.axis),
        sequence=sequence,
        at=timed.step,
        num_bytes=timed.move.link_ns,
        flags=0 if ended is not None and ended.began_ns < ended.ended_ns else Flag.DONE_BEFORE_WAIT,
    )
    yield call
    if ended is not None and stood_ns is not None:
        yield stall(call, stood_ns, ended.ended_ns)
