"""A rank that went on with work of its own until the others' time-out.

It does not stand still, so it is no stop for whoever watches the job. What it began while the others waited shows that
it waited in no collective itself.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.confidence import MEDIUM
from traincope.analysis.faults.faults import Fault
from traincope.analysis.faults.hangs.evidence.standing import DOING, on_axis
from traincope.analysis.faults.hangs.hang import Hang, HangKind
from traincope.analysis.faults.stacks import call_site, training_thread
from traincope.events import CLEAN, NO_STEP, Kind, Phase
from traincope.store.job.communication_errors import is_timeout
from traincope.store.segments.segments import last_progress_ns, own_work
from traincope.timeline import RankTimeline, Timeline
from traincope.units import duration, numbers

MIN_BEGUN = 3
"""Least number of intervals that the rank began during the wait."""
LAST_PART = 0.25
"""Last share of the wait, in which the rank still began one."""


def busy_until_a_timeout(timeline: Timeline, ends: Sequence[Fault]) -> Iterator[Hang]:
    """The stop of all ranks but one, by their errors. `ends`: of the same timeline."""
    failed = [end for end in ends if end.of_communication and end.is_fault]
    out_of_time = [end for end in failed if is_timeout(end.message)]
    if not out_of_time or timeline.run.missing:
        return
    until_ns = min(end.at_ns for end in out_of_time)
    begun = {rank.rank: _begun(rank, until_ns=until_ns) for rank in timeline.ranks}
    waited = {end.ranks[0] for end in out_of_time} & begun.keys()
    progress_ns = [last_progress_ns(rank.main, raised=True) for rank in timeline.ranks if rank.rank in waited]
    since_ns = max(progress_ns, default=until_ns)
    inside = {rank: records[records["start_ns"] > since_ns] for rank, records in begun.items()}
    recent_ns = until_ns - LAST_PART * (until_ns - since_ns)
    busy = [rank for rank in timeline.ranks if _is_busy(inside[rank.rank], recent_ns)]
    if len(busy) != 1 or busy[0].rank in waited or busy[0].ending == CLEAN:
        return
    others = {rank.rank for rank in timeline.ranks} - {busy[0].rank}
    if others != {end.ranks[0] for end in failed} - {busy[0].rank}:
        return
    sites = {end.site for end in out_of_time} - {""}
    at = f" at {sites.pop()}" if len(sites) == 1 else ""
    doing, site = _doing(inside[busy[0].rank]), _site(timeline, busy[0].rank, since_ns=since_ns)
    yield Hang(
        kind=HangKind.BUSY,
        culprits=(busy[0].rank,),
        victims=tuple(sorted(others)),
        step=None if busy[0].open_step in (None, NO_STEP) else busy[0].open_step,
        call_site=site,
        doing=doing,
        since_ns=since_ns,
        until_ns=until_ns,
        confidence=MEDIUM,
        evidence=f"rank {busy[0].rank} was at work{f' at {site}' if site else ''} for "
        f"{duration(until_ns - since_ns)}, {doing}; "
        f"{numbers(sorted(others), 'rank')} waited for it{at} until their time-out",
    )


def _site(timeline: Timeline, number: int, *, since_ns: int) -> str | None:
    """The line at which it stood when another rank ended; None if it wrote no stacks since the wait began."""
    looks = next(rank.looks for rank in timeline.run.ranks if rank.rank == number)
    clock = next((clock for clock in timeline.clocks if clock.rank == number), None)
    recent = [look for look in on_axis(looks, clock) if look.at_ns >= since_ns]
    stacks = [frames for look in recent if (frames := training_thread(look.stack))]
    return call_site(stacks[-1]) if stacks else None


def _begun(rank: RankTimeline, *, until_ns: int) -> NDArray[np.void]:
    """What the training began by itself before the time-out."""
    work = own_work(rank.main, raised=rank.ending not in (None, CLEAN))
    return work[work["start_ns"] < until_ns]


def _is_busy(begun: NDArray[np.void], recent_ns: float) -> bool:
    return len(begun) >= MIN_BEGUN and int(begun["start_ns"].max()) >= recent_ns


def _doing(begun: NDArray[np.void]) -> str:
    """Describe work by its phases, e.g. "in forward 700 times without a backward, as in an evaluation"."""
    phases = begun[begun["kind"] == Kind.PHASE]
    counts = {phase: int(np.count_nonzero(phases["phase"] == phase)) for phase in DOING}
    most = max(counts, key=lambda phase: counts[phase])
    if not counts[most]:
        return "in no phase that a probe covers"
    text = f"{DOING[most]} {counts[most]:,} times"
    alone = most is Phase.FORWARD and not counts[Phase.BACKWARD]
    return f"{text} without a backward, as in an evaluation" if alone else text
