"""Alignment of all hosts' clocks to the clock of the lowest rank's host, the reference.

Hosts that share collectives with the reference are aligned to it directly; others through a chain of as few hosts as
possible. Of several chains the one with the smallest bound is used. Bounds add up along a chain.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traincope.store.segments.segments import last_instant_ns
from traincope.timeline.clocks.bounds import bounded_offsets
from traincope.timeline.clocks.clocks import ClockSource, RankClock
from traincope.timeline.clocks.offsets import Offsets, max_error_over
from traincope.timeline.evidence import SharedInstances, shared_instances
from traincope.timeline.timeline import Timeline

Chain = tuple[Offsets, ...]
"""Offsets from a host's wall clock to the reference's, through the hosts between them."""


def align(timeline: Timeline) -> dict[int, RankClock]:
    """Return each rank's clock, more exact than the wall clocks with which `timeline` was built."""
    hosts = list(dict.fromkeys(clock.host for clock in timeline.clocks))
    host_of = {clock.rank: hosts.index(clock.host) for clock in timeline.clocks}
    chains = _chains(shared_instances(timeline, host_of), spans=_spans(timeline, host_of))
    return {clock.rank: _aligned(clock, chains.get(host_of[clock.rank])) for clock in timeline.clocks}


def _aligned(clock: RankClock, chain: Chain | None) -> RankClock:
    if chain is None:
        return clock
    return replace(clock, corrections=chain, source=ClockSource.MESSAGES if chain else ClockSource.SAME_HOST)


def _spans(timeline: Timeline, host_of: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """Return, for each host, its first and last instant in all records, also in those that the timeline omits."""
    times: dict[int, list[int]] = defaultdict(list)
    clocks = {clock.rank: clock for clock in timeline.clocks}
    for rank in timeline.run.ranks:
        if rank.rank in clocks:
            on_axis = np.array([end for segment in rank.segments for end in _ends(segment.records)], dtype=np.int64)
            times[host_of[rank.rank]] += clocks[rank.rank].on_axis(on_axis).tolist()
    return {host: (min(instants), max(instants)) for host, instants in times.items()}


def _ends(records: NDArray[np.void]) -> tuple[int, ...]:
    """Return the first and the last instant of the records, or nothing if there are none."""
    if not len(records):
        return ()
    return int(records["start_ns"].min()), last_instant_ns(records)


def _chains(shared: SharedInstances, *, spans: Mapping[int, tuple[int, int]]) -> dict[int, Chain]:
    """Find the chain from every host that is connected to the reference, host 0."""
    chains: dict[int, Chain] = {0: ()}
    newest = {0}
    while newest:
        reached: dict[int, Chain] = {}
        for via in sorted(newest):
            for host in sorted(shared.neighbours(via) - chains.keys()):
                begin_ns, end_ns = spans[host]
                offsets = bounded_offsets(shared.between(host, via), begin_ns=begin_ns, end_ns=end_ns)
                if offsets is not None:
                    chain = (offsets, *chains[via])
                    reached[host] = min(reached.get(host, chain), chain, key=max_error_over)
        chains |= reached
        newest = set(reached)
    return chains
