"""Time on the wire of every collective and message: one definition for the tables and for the bubble.

For a collective, and for a message whose receiver stalled for it, the records give the time (`Instances.transfer_ns`).
A message that arrived before its receiver waited for it is *hidden*: receives are posted ahead, the sender waits late,
and the records give only a latest end, which can lie after milliseconds of the receiver's own work. Its time is
estimated from similar messages: the median of the messages between the same two ranks in the same step that were
stalled for, or the smallest of these bounds if all were hidden. A message whose other end has no record does not even
have a useful bound: it gets the median of its axis.

A collective that ended before any of its ranks waited for it is estimated in the same way; DDP's first buckets are an
example. Similar collectives are those of its operation, group and size in the whole run. The estimate never exceeds
its own bound.

Marks on compute streams show which messages they measured, however long the stall. The others get the median of the
measured messages between the same two ranks in their step, or without these in the run, and at most their bound.
"""

from dataclasses import dataclass

import numpy as np

from traincope.arrays import AFTER_ALL_NS, Bools, Ints, chosen
from traincope.events import OPEN, RECEIVE_OPERATIONS, Kind
from traincope.timeline import Instances, Timeline
from traincope.timeline.intervals.medians import medians


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """Times on the wire: one entry per instance."""

    ns: Ints
    """Time on the wire."""
    measured: Bools
    """False: estimated from similar ones, because it is hidden or its other end has no record. By marks, false means an
    upper bound: no similar message is measured.
    """


def transfers(timeline: Timeline, instances: Instances) -> Transfers:
    """Compute the time on the wire of every instance."""
    ns, measured = instances.transfer_ns.copy(), np.ones(len(instances), dtype=bool)
    parts = np.flatnonzero(received(instances))
    if len(parts):
        number = instances.number[parts]
        bound = instances.transfer_ns[number]
        if timeline.by_marks:
            ns[number], measured[number] = _by_marks(instances, parts)
        else:
            hidden = 2 * _receiver_stall_ns(timeline, instances)[number] < bound
            ns[number[hidden]] = _typical(_similar_messages(instances, parts), bound, hidden=hidden)[hidden]
            measured[number[hidden]] = False
    unseen = _end_unseen(instances)
    ns, measured = np.where(unseen, _median_of_similar(instances, unseen), ns), measured & ~unseen
    direct = np.array([channel.direct for channel in instances.channels], dtype=bool)[instances.channel]
    one_sided = direct & ~instances.complete
    return Transfers(
        ns=_replace_bounds(instances, ns, one_sided=one_sided, two_sided=direct & ~one_sided),
        measured=measured & ~one_sided,
    )


def _by_marks(instances: Instances, parts: Ints) -> tuple[Ints, Bools]:
    """Return the time of each received message, and whether marks show it, or that of a similar one."""
    number = instances.number[parts]
    exact, ns = instances.exact[number], instances.transfer_ns[number]
    shown, result = exact.copy(), ns.copy()
    for similar in (_similar_messages(instances, parts), _links(instances, parts)):
        known, middle = medians(similar[exact], ns[exact])
        at = np.minimum(np.searchsorted(known, similar), max(len(known) - 1, 0))
        alike = ~shown & (np.append(known, -1)[at] == similar)
        result[alike] = np.minimum(ns, np.append(middle, 0)[at])[alike]
        shown |= alike
    return result, shown


def _end_unseen(instances: Instances) -> Bools:
    """Mark the collectives whose end no rank saw."""
    direct = np.array([channel.direct for channel in instances.channels], dtype=bool)[instances.channel]
    unseen: Bools = ~direct & ~instances.exact
    return unseen


def _median_of_similar(instances: Instances, unseen: Bools) -> Ints:
    """Estimate each instance from similar ones. Only the entries of unseen instances have a meaning."""
    if not unseen.any():
        return instances.transfer_ns
    kind, num_bytes = (np.zeros(len(instances), dtype=np.int64) for _ in range(2))
    kind[instances.number] = instances.parts.operation_code
    np.maximum.at(num_bytes, instances.number, instances.parts.num_bytes)
    sizes, size = np.unique(num_bytes, return_inverse=True)
    similar = (instances.channel * len(instances.operations) + kind) * len(sizes) + size
    return np.minimum(instances.transfer_ns, _typical(similar, instances.transfer_ns, hidden=unseen))


def _replace_bounds(instances: Instances, ns: Ints, *, one_sided: Bools, two_sided: Bools) -> Ints:
    """Replace the time of one-sided messages by the median of their axis, if it has a two-sided message."""
    axis = np.zeros(len(instances), dtype=np.int64)
    axis[instances.number] = instances.parts.axis_code
    known, middle = medians(axis[two_sided], ns[two_sided])
    at = np.minimum(np.searchsorted(known, axis), max(len(known) - 1, 0))
    replaced = one_sided & (np.append(known, -1)[at] == axis)
    return np.where(replaced, np.append(middle, 0)[at], ns)


def received(instances: Instances) -> Bools:
    """Mark the parts that are the receiving end of a message whose sending end is recorded."""
    receives = np.array([name in RECEIVE_OPERATIONS for name in instances.operations])
    direct = np.array([channel.direct for channel in instances.channels], dtype=bool)[instances.channel]
    chosen: Bools = receives[instances.parts.operation_code] & (direct & instances.complete)[instances.number]
    return chosen


def _similar_messages(instances: Instances, parts: Ints) -> Ints:
    """Number the messages so that those of one step, group, source and destination have the same number."""
    link = _links(instances, parts)
    step = instances.parts.step[parts].astype(np.int64) - int(instances.parts.step[parts].min())
    similar: Ints = link * (int(step.max()) + 1) + step
    return similar


def _links(instances: Instances, parts: Ints) -> Ints:
    """Number the messages so that those of one group, source and destination have the same number."""
    links = [(channel.group, channel.source, channel.destination) for channel in instances.channels]
    numbers = {link: number for number, link in enumerate(dict.fromkeys(links))}
    numbered = np.array([numbers[link] for link in links], dtype=np.int64)
    return numbered[instances.channel[instances.number[parts]]]


def _receiver_stall_ns(timeline: Timeline, instances: Instances) -> Ints:
    """Sum, for each instance, the stalls of its receiver."""
    stall_ns = np.zeros(len(instances) + 1, dtype=np.int64)  # the last entry is for stalls of unknown instances
    for rank in timeline.ranks:
        receives = [number for number, name in enumerate(rank.names) if name in RECEIVE_OPERATIONS]
        closed = (rank.main["kind"] == Kind.STALL) & (rank.main["end_ns"] != OPEN)
        stalls = chosen(rank.main, closed & np.isin(rank.main["name"], receives))
        np.add.at(stall_ns, instances.find(rank, stalls), stalls["end_ns"] - stalls["start_ns"])
    return stall_ns[:-1]


def _typical(similar: Ints, bound: Ints, *, hidden: Bools) -> Ints:
    """Return, for each message, the median of similar messages that were not hidden, or their smallest bound."""
    distinct, place = np.unique(similar, return_inverse=True)
    typical = np.full(len(distinct), AFTER_ALL_NS)
    np.minimum.at(typical, place, bound)
    known, middle = medians(similar[~hidden], bound[~hidden])
    typical[np.searchsorted(distinct, known)] = middle
    result: Ints = typical[place]
    return result
