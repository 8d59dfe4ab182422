"""Hosts' clocks -> the clock of the lowest rank's host, through those that met.

Hosts that met the reference are tied to it directly, others through those, over as few as possible;
of several ways the one with the least bound. Along a way bounds add up.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traincope.timeline.bounds import bounded_offsets
from traincope.timeline.clocks import ClockSource, RankClock
from traincope.timeline.evidence import Meetings, meetings
from traincope.timeline.offsets import Offsets, worst_over
from traincope.timeline.timeline import Timeline

Way = tuple[Offsets, ...]
"""From a host's wall clock to the reference's, over those between them."""


def align(timeline: Timeline) -> dict[int, RankClock]:
    """Rank -> its clock, better than by the wall clocks that `timeline` was built with."""
    hosts = list(dict.fromkeys(clock.host for clock in timeline.clocks))
    host_of = {clock.rank: hosts.index(clock.host) for clock in timeline.clocks}
    ways = _ways(meetings(timeline, host_of), spans=_spans(timeline, host_of))
    return {clock.rank: _aligned(clock, ways.get(host_of[clock.rank])) for clock in timeline.clocks}


def _aligned(clock: RankClock, way: Way | None) -> RankClock:
    if way is None:
        return clock
    return replace(clock, corrections=way, source=ClockSource.MESSAGES if way else ClockSource.SAME_HOST)


def _spans(timeline: Timeline, host_of: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """Host -> from the first record of its ranks to the last, whatever of them the timeline holds."""
    times: dict[int, list[int]] = defaultdict(list)
    clocks = {clock.rank: clock for clock in timeline.clocks}
    for rank in timeline.run.ranks:
        if rank.rank in clocks:
            whole = np.array([end for segment in rank.segments for end in _ends(segment.records)], dtype=np.int64)
            times[host_of[rank.rank]] += clocks[rank.rank].on_axis(whole).tolist()
    return {host: (min(seen), max(seen)) for host, seen in times.items()}


def _ends(records: NDArray[np.void]) -> tuple[int, ...]:
    """The first and the last instant."""
    if not len(records):
        return ()
    starts = records["start_ns"]
    return int(starts.min()), int(max(starts.max(), records["end_ns"].max()))


def _ways(met: Meetings, *, spans: Mapping[int, tuple[int, int]]) -> dict[int, Way]:
    """From every host that the reference, host 0, can be reached from."""
    ways: dict[int, Way] = {0: ()}
    newest = {0}
    while newest:
        found: dict[int, Way] = {}
        for via in sorted(newest):
            for host in sorted(met.neighbours(via) - ways.keys()):
                begin_ns, end_ns = spans[host]
                offsets = bounded_offsets(met.between(host, via), begin_ns=begin_ns, end_ns=end_ns)
                if offsets is not None:
                    way = (offsets, *ways[via])
                    found[host] = min(found.get(host, way), way, key=worst_over)
        ways |= found
        newest = set(found)
    return ways
