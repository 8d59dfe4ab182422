"""How long everything that was sent was on the wire: one definition, for the tables and for the bubble.

Of a collective, and of a message that its receiver stood still for, it is what the records of its ranks say
(`Instances.transfer_ns`). A message that had come before it was looked for was *hidden*: receives are posted ahead,
the sender looks back late, and all that is known is a latest end, which may lie behind milliseconds of the receiver's
own work. It is taken to have gone as its like did: the median of the messages between the same two ranks in the same
step that were stood still for, or the least of these bounds where all of them were hidden. Of a message whose other
end left no record not even such a bound is worth anything: it is taken for the median of its axis.

So it is with a collective that was over before any of its ranks looked, as DDP's first buckets are: its like are those
of its operation, group and size in the whole run, and it took no longer than its own bound.
"""

from dataclasses import dataclass

import numpy as np

from traincope.analysis.host import Bools, Ints
from traincope.analysis.schedule import halfway
from traincope.events import OPEN, RECEIVE_OPERATIONS, Kind
from traincope.timeline import Instances, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """One entry an instance."""

    ns: Ints
    """On the wire."""
    measured: Bools
    """False: hidden, or its other end is missing, so it is that of its like."""


def transfers(timeline: Timeline, instances: Instances) -> Transfers:
    """The time on the wire of every instance."""
    ns, measured = instances.transfer_ns.copy(), np.ones(len(instances), dtype=bool)
    parts = np.flatnonzero(received(instances))
    if len(parts):
        number = instances.number[parts]
        bound = instances.transfer_ns[number]
        hidden = 2 * _stood_still_ns(timeline, instances)[number] < bound
        ns[number[hidden]] = _typical(_alike(instances, parts), bound, hidden=hidden)[hidden]
        measured[number[hidden]] = False
    unseen = _unseen(instances)
    ns, measured = np.where(unseen, _as_their_like(instances, unseen), ns), measured & ~unseen
    direct = np.array([channel.direct for channel in instances.channels], dtype=bool)[instances.channel]
    half = direct & ~instances.complete
    return Transfers(ns=_without_bounds(instances, ns, half=half, whole=direct & ~half), measured=measured & ~half)


def _unseen(instances: Instances) -> Bools:
    """Collectives whose end no rank saw."""
    direct = np.array([channel.direct for channel in instances.channels], dtype=bool)[instances.channel]
    unseen: Bools = ~direct & ~instances.exact
    return unseen


def _as_their_like(instances: Instances, unseen: Bools) -> Ints:
    """Of each instance; only those of the unseen mean anything."""
    if not unseen.any():
        return instances.transfer_ns
    kind, num_bytes = (np.zeros(len(instances), dtype=np.int64) for _ in range(2))
    kind[instances.number] = instances.parts.operation_code
    np.maximum.at(num_bytes, instances.number, instances.parts.num_bytes)
    sizes, size = np.unique(num_bytes, return_inverse=True)
    alike = (instances.channel * len(instances.operations) + kind) * len(sizes) + size
    return np.minimum(instances.transfer_ns, _typical(alike, instances.transfer_ns, hidden=unseen))


def _without_bounds(instances: Instances, ns: Ints, *, half: Bools, whole: Bools) -> Ints:
    """Messages of which one end is missing, as the median of their axis; as they are where it has no whole one."""
    axis = np.zeros(len(instances), dtype=np.int64)
    axis[instances.number] = instances.parts.axis_code
    known, middle = medians(axis[whole], ns[whole])
    at = np.minimum(np.searchsorted(known, axis), max(len(known) - 1, 0))
    found = half & (np.append(known, -1)[at] == axis)
    return np.where(found, np.append(middle, 0)[at], ns)


def received(instances: Instances) -> Bools:
    """Which parts are the receiving end of a message whose other end is there."""
    receives = np.array([name in RECEIVE_OPERATIONS for name in instances.operations])
    direct = np.array([channel.direct for channel in instances.channels], dtype=bool)[instances.channel]
    chosen: Bools = receives[instances.parts.operation_code] & (direct & instances.complete)[instances.number]
    return chosen


def medians(groups: Ints, values: Ints) -> tuple[Ints, Ints]:
    """The distinct groups, and the median of the values of each."""
    order = np.lexsort((values, groups))
    ordered = values[order]
    distinct, first, count = np.unique(groups[order], return_index=True, return_counts=True)
    return distinct, halfway(ordered[first + (count - 1) // 2], ordered[first + count // 2])


def _alike(instances: Instances, parts: Ints) -> Ints:
    """The same number for messages of one step from one rank to another in one group."""
    links = [(channel.group, channel.source, channel.destination) for channel in instances.channels]
    numbers = {link: number for number, link in enumerate(dict.fromkeys(links))}
    link = np.array([numbers[link] for link in links], dtype=np.int64)[instances.channel[instances.number[parts]]]
    step = instances.parts.step[parts].astype(np.int64) - int(instances.parts.step[parts].min())
    alike: Ints = link * (int(step.max()) + 1) + step
    return alike


def _stood_still_ns(timeline: Timeline, instances: Instances) -> Ints:
    """How long the receiver of each instance stood still for it."""
    stood = np.zeros(len(instances) + 1, dtype=np.int64)  # the last is for stalls whose instance is not known
    for rank in timeline.ranks:
        receives = [number for number, name in enumerate(rank.names) if name in RECEIVE_OPERATIONS]
        stalls = rank.main[(rank.main["kind"] == Kind.STALL) & np.isin(rank.main["name"], receives)]
        stalls = stalls[stalls["end_ns"] != OPEN]
        np.add.at(stood, instances.find(rank, stalls), stalls["end_ns"] - stalls["start_ns"])
    return stood[:-1]


def _typical(alike: Ints, bound: Ints, *, hidden: Bools) -> Ints:
    """For each message the median of those of its like that were not hidden, the least bound where all were."""
    distinct, place = np.unique(alike, return_inverse=True)
    typical = np.full(len(distinct), np.iinfo(np.int64).max)
    np.minimum.at(typical, place, bound)
    known, middle = medians(alike[~hidden], bound[~hidden])
    typical[np.searchsorted(distinct, known)] = middle
    result: Ints = typical[place]
    return result
