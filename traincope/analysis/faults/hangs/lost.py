"""Stops for ranks of a lost host: the host is the cause, and which of its ranks failed is unknown.

The last records of such ranks may have been lost with the host, so the stop is judged without them.
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

from traincope.analysis.faults.faults import Fault
from traincope.analysis.faults.hangs.evidence.calls import latest_calls
from traincope.analysis.faults.hangs.evidence.standing import standing
from traincope.analysis.faults.hangs.hang import Hang, HangKind
from traincope.analysis.faults.hangs.sentences import lasting
from traincope.analysis.faults.hangs.stops import stops
from traincope.analysis.faults.lost_hosts import LostHost
from traincope.timeline import Timeline
from traincope.units import numbers


def stops_for_lost_hosts(timeline: Timeline, ends: Sequence[Fault], lost: Sequence[LostHost]) -> Iterator[Hang]:
    """One hang per stop whose missing ranks are all on one lost host.

    `timeline`: with the copies of ranks of all other hosts, which wait too. `ends`: of the same timeline.
    """
    rest = _without(timeline, {rank for host in lost for rank in host.ranks})
    for hang in stops(rest, standing(rest, latest_calls(rest)), ends):
        missing = {*hang.culprits, *hang.suspects}
        host = next((host for host in lost if missing and missing <= {*host.ranks}), None)
        if host is not None:
            yield _named(hang, host, start_ns=timeline.start_ns)


def _without(timeline: Timeline, ranks: Set[int]) -> Timeline:
    """The same run, as if these ranks had left no records."""
    kept = tuple(rank for rank in timeline.run.ranks if rank.rank not in ranks)
    missing = tuple(sorted({*timeline.run.missing, *ranks}))
    return replace(
        timeline,
        run=replace(timeline.run, ranks=kept, missing=missing),
        ranks=tuple(rank for rank in timeline.ranks if rank.rank not in ranks),
        clocks=tuple(clock for clock in timeline.clocks if clock.rank not in ranks),
    )


def _named(hang: Hang, host: LostHost, *, start_ns: int) -> Hang:
    waited = f"{numbers(hang.victims, 'rank')} waited for it in {hang.collective} on {hang.axis}"
    return replace(
        hang,
        kind=HangKind.LOST_HOST,
        culprits=(),
        suspects=host.ranks,
        host=host.host.name,
        cannot_go_on="its host was lost",
        confidence=host.confidence,
        evidence=f"{host.sentence(start_ns=start_ns)}; {waited}{lasting(hang.lasted_ns or 0)}",
    )
